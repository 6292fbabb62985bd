//! Who else is there, who is presumed dead, and who leads.
//!
//! # Signs of life
//!
//! A broker writes a slot at least every D/3. Brokers that are connected tell each other how far their journals are
//! ([`Input::PeerSeen`](crate::Input)); of one that says nothing, the journal's tip is looked at in the store. A leader watches everybody,
//! everybody watches the leader.
//!
//! # Presumed dead
//!
//! - *Silence*: a look at the journal that began at least D after it was last seen to move shows that it has not moved. Only the
//!   observer's monotonic clock counts, and not the time in which its own writes were slow: a store that is out of reach must not look
//!   like the death of everybody else. At most one broker per D is presumed dead for its silence (invariant *nobody-fences-the-world*).
//! - *Gone*: the shell saw its connection end and the next one refused ([`Input::PeerGone`](crate::Input)).
//! - *Replaced*: an older epoch at our own endpoint. Endpoints are unique, and we hold the port: that process is gone.
//!
//! If endpoints are not unique (NAT, a load balancer, loopback addresses of two machines), two brokers would so fence each other for ever,
//! each joining anew. So a broker that finds a newer epoch at its own endpoint stops for good, and says why (invariant *one-address-each*).
//!
//! A wrong guess costs time, never records: who is presumed dead is fenced before anything is concluded, see `recovery`.
//!
//! # Leading
//!
//! The log names the leader, with a term. Where the leader is recovered, leaves, or is presumed dead, the others stand for it, each
//! after a wait by its rank (the store's create-if-absent decides between two that do at once, but racing for it costs time on some
//! stores). Whoever finds somebody else named stops leading, and goes on as a broker.
//!
//! # The log
//!
//! Every broker follows the log: when a peer says that it is longer, else every D/5, and every D while it is alone.

use crate::{
    broker::{Broker, Life},
    cluster_writer::{Intent, is_vacant},
    interface::{Effect, Reply, StopReason, Ticket},
    mutation::Mutation,
    operations::{Purpose, Request},
    turn::Turn,
};
use bytes::Bytes;
use refstream_types::{Chain, Epoch, Slot, Version};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// An answer that was told to look elsewhere relies on a log that was read at most so long ago.
const FRESH: Duration = Duration::from_millis(20);

/// A write that takes so many times longer than usual says that the store is in trouble.
const SLOW: u32 = 4;

/// The journal of another broker.
#[derive(Debug)]
struct Watched {
    /// The highest slot known; `None` before the first look.
    slot: Option<u64>,
    /// When it was last seen to move, or when it was first watched.
    seen_at: Duration,
    asked_at: Option<Duration>,
    asking: bool,
    /// It gave a sign of life.
    heard: bool,
}

/// What this broker knows of the others.
#[derive(Debug, Default)]
pub(crate) struct Members {
    watched: BTreeMap<Epoch, Watched>,
    /// Those that are presumed dead.
    pub(crate) absent: BTreeSet<Epoch>,
    silenced_at: Option<Duration>,
    /// Our own writes were slow until then.
    slow_at: Duration,
    /// How long they take, on the whole.
    usual: Duration,
    vacant_since: Option<Duration>,
    standing: bool,
    asking_log: bool,
    ask_log_again: bool,
    log_looked_at: Duration,
    /// The last look that found nothing new began then.
    log_fresh_at: Option<Duration>,
    /// The longest log that a peer told of.
    told: Version,
    /// Those who wait for a look that begins after their requests, and when these came.
    refreshing: Vec<(Duration, Ticket)>,
}

impl Members {
    /// The question of who leads is decided.
    pub(crate) fn led(&mut self) {
        self.standing = false;
    }

    /// An epoch is over, or not what it seemed.
    pub(crate) fn is_settled(&mut self, epoch: Epoch) {
        self.absent.remove(&epoch);
        self.watched.remove(&epoch);
    }

    /// A commit of our own took so long. On a store that always is as slow, that means nothing.
    pub(crate) fn wrote(&mut self, took: Duration, death_after: Duration, now: Duration) {
        if took > (death_after / 2).max(self.usual * SLOW) {
            self.slow_at = now;
        }
        self.usual = (self.usual * 7 + took) / 8;
    }

    /// Whether all is known that the log said at `then`.
    pub(crate) fn has_seen_log_of(&self, then: Duration) -> bool {
        self.log_fresh_at.is_some_and(|at| at >= then)
    }

    /// All that wait for a look; nobody else will answer them.
    pub(crate) fn take_refreshing(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.refreshing).into_iter().map(|(_, ticket)| ticket).collect()
    }

    /// Whether everybody who is watched gave a sign of life, or is presumed dead.
    pub(crate) fn all_heard(&self) -> bool {
        self.watched.iter().all(|(epoch, watched)| watched.heard || self.absent.contains(epoch))
    }
}

impl Broker {
    /// Whether the log says that we lead.
    pub(crate) fn leads(&self) -> bool {
        self.epoch.is_some() && self.cluster.state.leader.map(|(_, leader)| leader) == self.epoch
    }

    /// Others that joined and were not recovered.
    pub(crate) fn others(&self) -> impl Iterator<Item = Epoch> {
        let mine = self.epoch;
        self.cluster.state.live_epochs().filter(move |epoch| Some(*epoch) != mine)
    }

    /// A broker at our own endpoint that is older than we are has gone.
    pub(crate) fn note_replaced(&mut self) {
        let Some(mine) = self.epoch else { return };
        let state = &self.cluster.state;
        let replaced = state.epochs.iter().filter(|(epoch, other)| {
            **epoch < mine && other.fence.is_none() && other.endpoint == self.identity.endpoint
        });
        self.members.absent.extend(replaced.map(|(epoch, _)| *epoch));
    }

    /// Whether a broker at our own endpoint joined after this process had.
    pub(crate) fn check_address(&self) -> Result<(), StopReason> {
        let Some(mine) = self.epoch else { return Ok(()) };
        let since = self.identity.former.unwrap_or(mine);
        let mut later = self.cluster.state.epochs.range(since.next()..).filter(|(epoch, _)| **epoch != mine);
        match later.find(|(_, other)| other.fence.is_none() && other.endpoint == self.identity.endpoint) {
            Some((by, other)) => Err(StopReason::AddressTaken { by: *by, endpoint: other.endpoint.clone() }),
            None => Ok(()),
        }
    }

    /// The shell saw that nobody listens at a broker's endpoint any more.
    pub(crate) fn peer_gone(&mut self, epoch: Epoch) {
        if self.others().any(|other| other == epoch) {
            self.members.absent.insert(epoch);
        }
    }

    /// A broker told how far its journal and its log are.
    pub(crate) fn peer_seen(&mut self, turn: &mut Turn<'_>, epoch: Epoch, committed: Slot, version: Version) {
        if let Some(watched) = self.members.watched.get_mut(&epoch) {
            watched.heard = true;
            if watched.slot.is_none_or(|slot| slot < committed.0) {
                watched.slot = Some(committed.0);
                watched.seen_at = turn.now.monotonic;
                self.is_back(epoch);
            }
        } else {
            // Where nobody's silence is judged, it was the end of a connection, and there is a new one.
            self.is_back(epoch);
        }
        self.members.told = self.members.told.max(version);
        if version > self.cluster.state.version && self.journal.is_some() {
            self.watch_log(turn);
        }
    }

    /// A broker that was presumed dead is not.
    fn is_back(&mut self, epoch: Epoch) {
        if !self.leading.is_recovering(epoch) && self.members.absent.remove(&epoch) {
            self.note_replaced();
        }
    }

    /// When something is to be looked at next.
    pub(crate) fn members_due(&self) -> Option<Duration> {
        self.journal.as_ref()?;
        let members = &self.members;
        let log = (!members.asking_log).then(|| members.log_looked_at + self.log_interval());
        let tips = members.watched.iter().filter(|(epoch, watched)| !watched.asking && !members.absent.contains(epoch));
        let tip = tips.map(|(_, watched)| self.tip_due(watched)).min();
        let stand = (!members.standing).then(|| members.vacant_since.map(|since| since + self.rank_delay())).flatten();
        [log, tip, stand].into_iter().flatten().min()
    }

    fn log_interval(&self) -> Duration {
        let death = self.settings.death_after;
        let interval = if self.others().next().is_some() { death / 5 } else { death };
        interval.min(self.settings.fence_check)
    }

    fn tip_due(&self, watched: &Watched) -> Duration {
        let death = self.settings.death_after;
        match watched.asked_at {
            None => Duration::ZERO,
            Some(asked) if watched.slot.is_none() || !watched.heard => asked + death / 10,
            Some(asked) => (watched.seen_at + death / 2).max(asked + death / 10),
        }
    }

    /// How long to wait for others to stand before us.
    fn rank_delay(&self) -> Duration {
        let state = &self.cluster.state;
        let before = state.epochs.iter().filter(|(epoch, other)| {
            Some(**epoch) < self.epoch && other.takes_segments() && !self.members.absent.contains(epoch)
        });
        self.settings.death_after / 20 * u32::try_from(before.count()).unwrap_or(u32::MAX)
    }

    /// Watches, and stands where nobody leads.
    pub(crate) fn watch(&mut self, turn: &mut Turn<'_>) {
        if self.journal.is_none() {
            return;
        }
        let now = turn.now.monotonic;
        if !self.members.asking_log && now >= self.members.log_looked_at + self.log_interval() {
            self.watch_log(turn);
        }
        self.watch_journals(turn);
        let vacant = is_vacant(&self.cluster.state, &self.members.absent) && !matches!(self.life, Life::Draining(_));
        if !vacant {
            self.members.vacant_since = None;
            return;
        }
        let since = *self.members.vacant_since.get_or_insert(now);
        if !self.members.standing && now >= since + self.rank_delay() {
            self.members.standing = true;
            self.cluster.want(Intent::Lead);
        }
    }

    fn watch_journals(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now.monotonic;
        let leader = self.cluster.state.leader.map(|(_, leader)| leader);
        let leads = self.leads();
        let wanted: BTreeSet<Epoch> = self.others().filter(|epoch| leads || Some(*epoch) == leader).collect();
        self.members.watched.retain(|epoch, _| wanted.contains(epoch));
        for epoch in &wanted {
            let fresh = Watched { slot: None, seen_at: now, asked_at: None, asking: false, heard: false };
            self.members.watched.entry(*epoch).or_insert(fresh);
        }
        let due: Vec<Epoch> = self
            .members
            .watched
            .iter()
            .filter(|(epoch, watched)| {
                !watched.asking && !self.members.absent.contains(epoch) && self.tip_due(watched) <= now
            })
            .map(|(epoch, _)| *epoch)
            .collect();
        for epoch in due {
            let Some(watched) = self.members.watched.get_mut(&epoch) else { continue };
            watched.asking = true;
            watched.asked_at = Some(now);
            let hint = watched.slot.unwrap_or(0);
            let request = Request::Tip { chain: Chain::Journal(epoch), hint };
            self.operations.submit(turn, Purpose::WatchTip(epoch), request);
        }
    }

    /// A look at a journal, begun at `since`, found this tip.
    pub(crate) fn tip_watched(&mut self, turn: &Turn<'_>, epoch: Epoch, tip: Option<u64>, since: Duration) {
        let (now, death) = (turn.now.monotonic, self.settings.death_after);
        let slow_at = self.members.slow_at;
        let Some(watched) = self.members.watched.get_mut(&epoch) else { return };
        watched.asking = false;
        let tip = tip.unwrap_or(0);
        match watched.slot {
            // Where it was is no sign of life.
            None => watched.slot = Some(tip),
            Some(slot) if tip > slot => {
                watched.slot = Some(tip);
                watched.seen_at = now;
                watched.heard = true;
            }
            Some(_) => {
                let silent = since >= watched.seen_at.max(slow_at) + death;
                let one_at_a_time = self.members.silenced_at.is_none_or(|before| now >= before + death);
                if silent && one_at_a_time {
                    self.members.silenced_at = Some(now);
                    self.members.absent.insert(epoch);
                }
            }
        }
    }

    // The log.

    /// Somebody wants what is in the log now.
    pub(crate) fn refresh(&mut self, turn: &mut Turn<'_>, ticket: Ticket) {
        if self.journal.is_none() {
            let result = self.available();
            return turn.emit(Effect::Reply { ticket, reply: Reply::Refreshed(result) });
        }
        self.members.refreshing.push((turn.now.monotonic, ticket));
        self.watch_log(turn);
    }

    /// Looks whether the log has grown.
    pub(crate) fn watch_log(&mut self, turn: &mut Turn<'_>) {
        if self.members.asking_log {
            self.members.ask_log_again = true;
            return;
        }
        self.members.asking_log = true;
        self.members.log_looked_at = turn.now.monotonic;
        let number = self.cluster.state.version.0 + 1;
        let request = match self.mutation {
            Mutation::TrustSleepers => Request::Read { chain: Chain::ClusterLog, number },
            _ => Request::ReadLog { number },
        };
        self.operations.submit(turn, Purpose::LogWatch(number), request);
    }

    pub(crate) fn log_watched(
        &mut self,
        turn: &mut Turn<'_>,
        number: u64,
        bytes: Option<Bytes>,
        since: Duration,
    ) -> Result<(), StopReason> {
        self.members.asking_log = false;
        match bytes {
            // While an entry of ours is under way, its commit finds out.
            Some(_) if self.cluster.proposed.is_some() => {}
            Some(bytes) => {
                // It may have been applied meanwhile.
                if number == self.cluster.state.version.next().0 {
                    self.follow_log(turn, &bytes)?;
                }
                self.members.ask_log_again = true;
            }
            None => {
                // A log that was freed under a sleeper has nothing at its next number either. Whoever is about to conclude something makes
                // sure; else it is enough to do so now and then.
                let version = self.cluster.state.version;
                let slept =
                    self.members.log_fresh_at.is_some_and(|before| since > before + self.settings.death_after * 2);
                if (slept || self.members.told > version || self.waits_for_log()) && version > Version(0) {
                    self.operations.submit(turn, Purpose::LogStill(since), Request::ReadLog { number: version.0 });
                } else {
                    self.log_is_known(turn, since)?;
                }
            }
        }
        if std::mem::take(&mut self.members.ask_log_again) {
            self.watch_log(turn);
        }
        Ok(())
    }

    /// The log as we know it was all of it at `since`.
    pub(crate) fn log_is_known(&mut self, turn: &mut Turn<'_>, since: Duration) -> Result<(), StopReason> {
        self.members.log_fresh_at = self.members.log_fresh_at.max(Some(since));
        for (asked, ticket) in std::mem::take(&mut self.members.refreshing) {
            if asked <= since {
                turn.emit(Effect::Reply { ticket, reply: Reply::Refreshed(Ok(())) });
            } else {
                self.members.refreshing.push((asked, ticket));
            }
        }
        self.log_is_fresh(turn)
    }

    /// Looks at the log again if somebody waits for it.
    pub(crate) fn look_for_waiting(&mut self, turn: &mut Turn<'_>) {
        if self.waits_for_log() {
            self.watch_log(turn);
        }
    }

    /// Whether something is concluded once all of the log is known.
    fn waits_for_log(&self) -> bool {
        self.leading.waits_for_log()
            || self.arrivals.waits_for_log()
            || !self.members.refreshing.is_empty()
            || self.lanes.oldest_parked().is_some()
    }

    /// Whether all is known that the log said at `then`.
    pub(crate) fn has_seen_log_of(&self, then: Duration) -> bool {
        self.members.has_seen_log_of(then)
    }

    /// Whether what the log says is what it said a moment ago.
    pub(crate) fn knows_log(&self, now: Duration) -> bool {
        self.members.log_fresh_at.is_some_and(|at| now <= at + FRESH)
    }
}
