//! What the master knows: new file ids, and where volumes are.
//!
//! Assignments are asked for in batches (100 at once give more than twice the requests per second) and kept for a few seconds. Each payload takes
//! two ids of an assignment: its own, and the next one for the sums of its blocks. Ids that are not used are lost, which costs nothing.

use super::{Shared, fid::Fid, http::Answer};
use crate::{
    StoreErrorKind,
    attempt::Failed,
    grant::{Grants, NeedleGrant, NeedlePlace, ReadAsk, ReadGrant},
};
use serde::Deserialize;
use std::{collections::VecDeque, sync::Arc, time::Duration};

/// Payloads of one assignment, at most.
const BATCH: u64 = 32;
/// Payload bytes of one assignment, about.
const BATCH_BYTES: u64 = 8 << 20;
/// How long assigned ids are used: a permission lives for 10 s unless the cluster says otherwise, and volumes fill up.
const FRESH: Duration = Duration::from_secs(4);
/// How long a volume's locations are believed without asking again.
const KNOWN: Duration = Duration::from_secs(600);
/// Ids that one payload takes: its own, and one for the sums of its blocks.
const STRIDE: u64 = 2;

/// An id to write to, once.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) fid: Fid,
    /// The first id of its assignment, which permissions name.
    pub(super) first: Fid,
    /// As it stands in the URL: a permission is for the first id of its assignment, and `_n` after it.
    pub(super) path: String,
    /// `HOST:PORT` of the volume server.
    pub(super) server: Arc<str>,
    pub(super) token: Option<String>,
    /// Where the sums of its blocks go, and what proves it as a part: of a grant.
    pub(super) granted: Option<(NeedlePlace, Option<String>)>,
    until: Duration,
    /// Bytes per payload for which its assignment was made.
    fits: u64,
}

impl Assigned {
    /// A needle by a grant.
    pub(super) fn granted(fid: Fid, grant: NeedleGrant) -> Self {
        let NeedleGrant { server, place: NeedlePlace { path, token }, beside, proof, .. } = grant;
        let granted = Some((beside, proof));
        Self { fid, first: fid, path, server: server.into(), token, granted, until: Duration::ZERO, fits: 0 }
    }
}

/// Ids that were assigned and not used yet.
#[derive(Debug, Default)]
pub(super) struct Pool(tokio::sync::Mutex<VecDeque<Assigned>>);

/// Where a volume is.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) servers: Arc<[Arc<str>]>,
    until: Duration,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Location {
    url: String,
    #[serde(default)]
    public_url: String,
}

impl Location {
    fn server(self) -> Arc<str> {
        if self.public_url.is_empty() { self.url.into() } else { self.public_url.into() }
    }
}

#[derive(Deserialize)]
struct AssignAnswer {
    #[serde(default)]
    fid: String,
    #[serde(default)]
    count: u64,
    #[serde(default)]
    error: String,
    #[serde(flatten)]
    location: Option<Location>,
}

#[derive(Deserialize)]
struct LookupAnswer {
    #[serde(default)]
    locations: Vec<Location>,
    #[serde(default)]
    error: String,
}

impl Shared {
    /// Asks a master; the next one when one cannot be reached.
    async fn ask_master(
        &self,
        operation: &'static str,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<Answer, Failed> {
        let mut outcome = None;
        let first = self.leader.load(std::sync::atomic::Ordering::Relaxed);
        for turn in 0..self.config.masters.len() {
            let index = (first + turn) % self.config.masters.len();
            let master = &self.config.masters[index];
            let query: Vec<_> = query.iter().map(|(name, value)| format!("{name}={}", super::escaped(value))).collect();
            let request = self.client.get(self.url(master, &format!("{path}?{}", query.join("&"))));
            match self.ask(operation, None, 0, request).await {
                Ok(answer) => {
                    self.leader.store(index, std::sync::atomic::Ordering::Relaxed);
                    return Ok(answer);
                }
                // It was reached and knows no better than the others.
                Err(failed) if failed.status.is_some_and(|status| status < 500) => return Err(failed),
                Err(failed) => outcome = Some(failed),
            }
        }
        Err(outcome.unwrap_or_else(|| Failed {
            error: self.error(StoreErrorKind::Invalid, operation, None, "no master is configured"),
            happened: false,
            status: None,
        }))
    }

    fn misunderstood(&self, operation: &'static str, why: impl std::fmt::Display) -> Failed {
        let error =
            self.error(StoreErrorKind::Invalid, operation, None, format!("the master's answer means nothing: {why}"));
        Failed { error, happened: false, status: None }
    }

    /// An id that nobody has written to, for a payload of `size` bytes.
    pub(super) async fn assign(&self, size: u64) -> Result<Assigned, Failed> {
        let mut pool = self.pool.0.lock().await;
        let now = self.runtime.now();
        pool.retain(|assigned| assigned.until > now);
        if let Some(at) = pool.iter().position(|assigned| size <= assigned.fits)
            && let Some(assigned) = pool.remove(at)
        {
            return Ok(assigned);
        }
        let each = size.max(64 << 10);
        let mut assigned = self.assign_payloads(each, (BATCH_BYTES / each).clamp(1, BATCH)).await?;
        let last = assigned.pop().ok_or_else(|| self.misunderstood("assign", "no ids"))?;
        pool.extend(assigned);
        Ok(last)
    }

    /// An id of an assignment of its own: what permits to write to it permits to write to no other payload.
    pub(super) async fn assign_alone(&self, size: u64) -> Result<Assigned, Failed> {
        let assigned = self.assign_payloads(size, 1).await?;
        assigned.into_iter().next().ok_or_else(|| self.misunderstood("assign", "no ids"))
    }

    /// Has the master assign ids for this many payloads of `each` bytes.
    async fn assign_payloads(&self, each: u64, payloads: u64) -> Result<Vec<Assigned>, Failed> {
        let config = &self.config;
        let mut query = vec![("count", (payloads * STRIDE).to_string()), ("dataSize", (payloads * each).to_string())];
        let placement =
            [("replication", &config.replication), ("collection", &config.collection), ("ttl", &config.ttl)];
        query.extend(placement.into_iter().filter(|(_, value)| !value.is_empty()).map(|(n, v)| (n, v.clone())));
        let answer = self.ask_master("assign", "dir/assign", &query).await?;
        let said: AssignAnswer =
            serde_json::from_slice(&answer.body).map_err(|error| self.misunderstood("assign", error))?;
        if !said.error.is_empty() {
            let error = self.error(StoreErrorKind::Throttled(None), "assign", None, said.error);
            return Err(Failed { error, happened: false, status: Some(answer.status) });
        }
        let first: Fid = said.fid.parse().map_err(|()| self.misunderstood("assign", format!("fid {:?}", said.fid)))?;
        let location = said.location.ok_or_else(|| self.misunderstood("assign", "no url"))?;
        let server = location.server();
        let until = self.runtime.now() + FRESH;
        let deltas = (0..said.count.max(1)).step_by(STRIDE as usize);
        let assigned = deltas.filter(|delta| delta + 1 < said.count.max(STRIDE)).map(|delta| {
            let path = if delta == 0 { said.fid.clone() } else { format!("{}_{delta}", said.fid) };
            let (fid, server, token) = (first.plus(delta), Arc::clone(&server), answer.token.clone());
            Assigned { fid, first, path, server, token, granted: None, until, fits: each }
        });
        Ok(assigned.collect())
    }

    /// The servers that hold a needle.
    pub(super) async fn locate(&self, fid: Fid) -> Result<Arc<[Arc<str>]>, Failed> {
        let Some(grants) = &self.grants else { return self.located(fid.volume).await };
        match self.read_grant(&**grants, fid).await? {
            (servers, _) if servers.is_empty() => Err(self.misunderstood("lookup", "the grant names no server")),
            (servers, _) => Ok(servers.into_iter().map(Arc::from).collect()),
        }
    }

    /// Servers and permission of a read that was granted.
    pub(super) async fn read_grant(
        &self,
        grants: &dyn Grants,
        fid: Fid,
    ) -> Result<(Vec<String>, Option<String>), Failed> {
        let failed = |error| Failed { error, happened: false, status: None };
        let key = self.key_of(fid).map_err(failed)?;
        match grants.read(&ReadAsk { key, version: None, head: false }).await.map_err(failed)? {
            ReadGrant::Needle { servers, token, .. } => Ok((servers, token)),
            ReadGrant::Request(_) => Err(self.misunderstood("lookup", "the grant is one of another kind of store")),
        }
    }

    /// The servers that hold a volume; asks the master unless they are known.
    pub(super) async fn located(&self, volume: u32) -> Result<Arc<[Arc<str>]>, Failed> {
        let now = self.runtime.now();
        if let Some(known) = self.known().get(&volume).filter(|known| known.until > now) {
            return Ok(Arc::clone(&known.servers));
        }
        let query = [("volumeId", volume.to_string())];
        let unknown = |failed: Failed, what: &str| {
            // The volume may be on a server that is away: not the same as an object that does not exist.
            let message = format!("volume {volume} is on no server that the master knows ({what})");
            let error = self.error(StoreErrorKind::Unavailable, "lookup", None, message);
            Failed { error, ..failed }
        };
        let answer = match self.ask_master("lookup", "dir/lookup", &query).await {
            Err(failed) if failed.error.is_not_found() => {
                let what = failed.error.message.clone();
                return Err(unknown(failed, &what));
            }
            answer => answer?,
        };
        let said: LookupAnswer =
            serde_json::from_slice(&answer.body).map_err(|error| self.misunderstood("lookup", error))?;
        let servers: Arc<[Arc<str>]> = said.locations.into_iter().map(Location::server).collect();
        if servers.is_empty() {
            return Err(unknown(self.misunderstood("lookup", "no locations"), &said.error));
        }
        self.known().insert(volume, Known { servers: Arc::clone(&servers), until: now + KNOWN });
        Ok(servers)
    }

    /// Ids at a server that failed are not used any more: the next ones are asked for afresh.
    pub(super) async fn avoid(&self, server: &str) {
        self.pool.0.lock().await.retain(|assigned| &*assigned.server != server);
    }

    /// Forgets where a volume is, since it is not there.
    pub(super) fn forget(&self, fid: Fid) {
        self.known().remove(&fid.volume);
        if let (Some(grants), Some(key)) = (&self.grants, fid.key()) {
            grants.forget(&key);
        }
    }

    /// A permission for one needle that the master gives, where it does.
    pub(super) async fn permission(&self, fid: Fid, write: bool) -> Result<Option<String>, Failed> {
        if let Some(grants) = &self.grants {
            if write {
                let message = "this client has no access to the cluster's master, and grants do not cover this";
                let error = self.error(StoreErrorKind::AccessDenied, "write", fid.key().as_ref(), message);
                return Err(Failed { error, happened: false, status: None });
            }
            return Ok(self.read_grant(&**grants, fid).await?.1);
        }
        let mut query = vec![("volumeId", fid.volume.to_string()), ("fileId", fid.to_string())];
        if !write {
            query.push(("read", "yes".into()));
        }
        Ok(self.ask_master("lookup", "dir/lookup", &query).await?.token)
    }
}
