//! What goes wrong, and how it is made well again.

use super::{DEAF_LOG_CALLS, DROPPED_LOG_WRITES, MOST_PAUSE, Waiter, World};
use crate::plan::Blow;
use rand::Rng;
use refstream_core::{Input, TopicOperation};
use refstream_filer_adapter::{
    Runtime,
    memory::{Fault, Operation},
};
use refstream_types::Chain;
use std::time::Duration;

impl World {
    pub(super) fn strike(&mut self, blow: Blow) {
        self.say(|| format!("{blow:?}"));
        let alive: Vec<_> = (0..self.processes.len()).filter(|p| !self.processes[*p].over).collect();
        let at = self.random.random_range(0..alive.len().max(1));
        let victim = alive.get(at).copied();
        let now = self.clock.now();
        match (blow, victim) {
            (Blow::StartAnother, _) => self.start(None),
            (Blow::Outage { all: true, lasts }, _) => {
                for process in alive {
                    self.processes[process].outside.store.set_cut_off(true);
                    self.outages.push((now + lasts, process));
                }
            }
            (_, None) => {}
            (Blow::Crash, Some(process)) => {
                self.say(|| format!("process {process} crashes"));
                self.end(process);
            }
            (Blow::Pause(lasts), Some(process)) => {
                self.say(|| format!("process {process} pauses for {lasts:?}"));
                self.processes[process].paused_until = Some(now + lasts);
                if self.random.random_bool(0.7) {
                    self.starts.push((now + lasts.mul_f64(self.random.random_range(0.0..1.0)), None));
                }
            }
            (Blow::Outage { lasts, .. }, Some(process)) => {
                self.processes[process].outside.store.set_cut_off(true);
                self.outages.push((now + lasts, process));
            }
            (Blow::WallJump(seconds), Some(process)) => {
                self.processes[process].wall_offset += seconds * 1_000_000;
            }
            (Blow::LogOutage, Some(process)) => {
                let prefix = self.layout.chain_prefix(&Chain::ClusterLog);
                for _ in 0..DROPPED_LOG_WRITES {
                    self.processes[process].outside.store.script(Operation::Create, &prefix, Fault::Dropped);
                }
                self.strike_seal(process);
            }
            (Blow::LogDeafness, Some(process)) => {
                let prefix = self.layout.chain_prefix(&Chain::ClusterLog);
                for _ in 0..DEAF_LOG_CALLS {
                    self.processes[process].outside.store.script(Operation::Create, &prefix, Fault::Lost);
                    self.processes[process].outside.store.script(Operation::Read, &prefix, Fault::Failed);
                }
            }
            (Blow::Seal, Some(process)) => self.strike_seal(process),
            (Blow::CreateScratch, Some(process)) => {
                self.scratches += 1;
                let Ok(name) = format!("scratch-{}", self.scratches).parse() else { return };
                let operation = TopicOperation::Create { name, config: self.plan.topics[0].clone() };
                let ticket = self.ticket(Waiter::Other);
                self.give(process, Input::Topic { ticket, operation });
            }
            (Blow::DeleteScratch, Some(process)) => {
                let scratch = self.observer.state.topics.keys().find(|id| !self.topics.contains(&Some(**id))).copied();
                if let Some(topic) = scratch.filter(|_| self.topics.iter().all(Option::is_some)) {
                    let ticket = self.ticket(Waiter::Other);
                    self.give(process, Input::Topic { ticket, operation: TopicOperation::Delete { topic } });
                }
            }
            (Blow::FalseAlarm, Some(process)) => {
                if let Some(epoch) = self.epoch_of(process) {
                    for other in alive.into_iter().filter(|other| *other != process) {
                        self.give(other, Input::PeerGone { epoch });
                    }
                }
            }
            (Blow::Drain, Some(process)) => {
                let ticket = self.ticket(Waiter::Other);
                self.give(process, Input::Drain { ticket });
            }
        }
    }

    fn strike_seal(&mut self, process: usize) {
        let topics: Vec<_> = self.topics.iter().flatten().copied().collect();
        for topic in topics {
            let ticket = self.ticket(Waiter::Other);
            self.give(process, Input::Seal { ticket, topic });
        }
    }

    /// Everything is well again, and one more broker starts.
    pub(super) fn heal(&mut self) {
        self.say(|| "calm".into());
        self.calm = true;
        let faults = self.calm_faults();
        self.outages.clear();
        for process in 0..self.processes.len() {
            let target = &mut self.processes[process];
            target.outside.store.set_faults(faults.clone());
            if !target.over {
                target.outside.store.set_cut_off(false);
            }
        }
        let now = self.clock.now();
        self.starts = vec![(now, None)];
        for lane in &mut self.lanes {
            lane.pause = lane.pause.min(MOST_PAUSE);
            lane.at = lane.at.min(now + MOST_PAUSE);
        }
        for process in &mut self.processes {
            if let Some(until) = &mut process.paused_until {
                *until = now + Duration::from_millis(100);
            }
        }
    }
}
