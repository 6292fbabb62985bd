//! How far a backfill is, and why it does not move.

use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// How often progress is told.
pub(super) const EVERY: Duration = Duration::from_millis(500);
/// Nothing moved for this long: the backfill stalls.
const STALLS_AFTER: Duration = Duration::from_secs(20);
/// The rate is that of the last so many samples.
const SAMPLES: usize = 40;

/// How far a backfill is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BackfillProgress {
    /// Files found so far, without those that an earlier run has done.
    pub files_found: u64,
    /// Bytes of the files found so far.
    pub bytes_found: u64,
    /// Nothing more will be found.
    pub found_all: bool,
    /// Files whose record is durable.
    pub files_done: u64,
    /// Their bytes.
    pub bytes_done: u64,
    /// Files that an earlier run has done.
    pub files_already: u64,
    /// Files that failed.
    pub files_failed: u64,
    /// Files that are being read and hashed.
    pub hashing: u64,
    /// Files whose payload is on its way to the store.
    pub uploading: u64,
    /// Files whose record is on its way.
    pub committing: u64,
    /// Bytes that the store has taken, parts of unfinished files included.
    pub bytes_stored: u64,
    /// Bytes a second, of the files done lately.
    pub bytes_per_second: f64,
    /// Files a second, lately.
    pub files_per_second: f64,
    /// Seconds until the end, by bytes; `None` while files are still being found or nothing moves.
    pub eta_seconds: Option<f64>,
    /// Seconds so far.
    pub seconds: f64,
    /// Why nothing moves, once nothing has moved for a while.
    pub stalled: Option<String>,
}

/// Where a file is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Hashing = 0,
    Uploading = 1,
    Committing = 2,
}

/// How many files are in each phase.
#[derive(Debug, Default)]
pub(super) struct Phases {
    files: [AtomicU64; 3],
    moves: AtomicU64,
    /// A file that is being read.
    reading: Mutex<String>,
}

impl Phases {
    /// Files enter a phase; they leave it when what this returns is dropped.
    pub(super) fn enter(self: &Arc<Self>, phase: Phase, files: u64) -> InPhase {
        self.files[phase as usize].fetch_add(files, Ordering::Relaxed);
        self.moves.fetch_add(1, Ordering::Relaxed);
        InPhase { phases: Arc::clone(self), phase, files }
    }
    pub(super) fn of(&self, phase: Phase) -> u64 {
        self.files[phase as usize].load(Ordering::Relaxed)
    }
    /// Notes what is read now.
    pub(super) fn reads(&self, name: &str) {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.clear();
        reading.push_str(name);
    }
}

/// Files in a phase.
#[derive(Debug)]
pub(super) struct InPhase {
    phases: Arc<Phases>,
    phase: Phase,
    files: u64,
}

impl InPhase {
    /// They go on to another phase.
    pub(super) fn go_on(self, phase: Phase) -> Self {
        self.phases.enter(phase, self.files)
    }
}

impl Drop for InPhase {
    fn drop(&mut self) {
        self.phases.files[self.phase as usize].fetch_sub(self.files, Ordering::Relaxed);
        self.phases.moves.fetch_add(1, Ordering::Relaxed);
    }
}

/// What goes wrong where, although it is still tried.
#[derive(Clone, Debug, Default)]
pub(super) struct Troubles {
    pub(super) store: Option<String>,
    pub(super) broker: Option<String>,
}

/// Computes rates, and sees when nothing moves.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Time, bytes and files done.
    samples: VecDeque<(Duration, u64, u64)>,
    moved: Option<(Duration, (u64, u64, u64))>,
}

impl Watch {
    /// Completes what is known at `now`, which never goes back.
    pub(super) fn look(
        &mut self,
        now: Duration,
        progress: &mut BackfillProgress,
        phases: &Phases,
        troubles: impl FnOnce() -> Troubles,
    ) {
        progress.hashing = phases.of(Phase::Hashing);
        progress.uploading = phases.of(Phase::Uploading);
        progress.committing = phases.of(Phase::Committing);
        self.samples.push_back((now, progress.bytes_done, progress.files_done));
        if self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
        let (then, bytes, files) = self.samples.front().copied().unwrap_or_default();
        let elapsed = (now - then).as_secs_f64();
        let rate = |amount: u64| if elapsed > 0.0 { amount as f64 / elapsed } else { 0.0 };
        progress.bytes_per_second = rate(progress.bytes_done - bytes);
        progress.files_per_second = rate(progress.files_done - files);
        let left = progress.bytes_found.saturating_sub(progress.bytes_done) as f64;
        progress.eta_seconds = (progress.found_all && progress.bytes_per_second > 0.0)
            .then(|| left / progress.bytes_per_second)
            .filter(|eta| eta.is_finite());
        let marks = (phases.moves.load(Ordering::Relaxed), progress.bytes_stored, progress.files_found);
        let since = match self.moved {
            Some((since, before)) if before == marks => since,
            _ => {
                self.moved = Some((now, marks));
                now
            }
        };
        let still = now - since;
        progress.stalled = (still >= STALLS_AFTER)
            .then(|| format!("nothing moved for {} s: {}", still.as_secs(), cause(progress, phases, troubles())));
    }
}

/// What everything waits for.
fn cause(progress: &BackfillProgress, phases: &Phases, troubles: Troubles) -> String {
    let BackfillProgress { hashing, uploading, committing, .. } = *progress;
    match (troubles.store, troubles.broker) {
        (_, Some(broker)) if committing > 0 => format!("{committing} records wait for the broker: {broker}"),
        (Some(store), _) if uploading > 0 => format!("{uploading} files wait for the store: {store}"),
        _ if committing > 0 && uploading == 0 => {
            format!("{committing} records wait for the broker's ack, which neither comes nor fails")
        }
        _ if uploading > 0 => format!("{uploading} files wait for the store, which neither answers nor fails"),
        _ if hashing > 0 => {
            let reading = phases.reading.lock().unwrap_or_else(PoisonError::into_inner);
            format!("{hashing} files are being read, one of them {reading}: is its file system hanging?")
        }
        _ if !progress.found_all => "the walk finds nothing: is a file system or the list on stdin hanging?".to_owned(),
        _ => "the job's own state is being written: is its disk full or hanging?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_rate_is_that_of_late_and_the_eta_goes_by_bytes() {
        let phases = Arc::new(Phases::default());
        let mut watch = Watch::default();
        let mut progress = BackfillProgress { bytes_found: 1_000, files_found: 10, ..BackfillProgress::default() };
        for second in 0..=5 {
            progress.bytes_done = second * 100;
            progress.files_done = second;
            watch.look(seconds(second), &mut progress, &phases, Troubles::default);
        }
        assert_eq!((progress.bytes_per_second, progress.files_per_second), (100.0, 1.0));
        assert_eq!(progress.eta_seconds, None, "files are still being found");
        progress.found_all = true;
        watch.look(seconds(5), &mut progress, &phases, Troubles::default);
        assert_eq!(progress.eta_seconds, Some(5.0));
    }

    #[test]
    fn a_stall_names_its_cause_and_ends_with_the_next_move() {
        let phases = Arc::new(Phases::default());
        let mut watch = Watch::default();
        let mut progress = BackfillProgress::default();
        let mut look = |at, progress: &mut BackfillProgress, troubles: Troubles| {
            watch.look(seconds(at), progress, &phases, || troubles);
            progress.stalled.clone()
        };
        let refused = |what: &str| Some(format!("{what}: connection refused"));
        let uploading = phases.enter(Phase::Uploading, 3);
        assert_eq!(look(0, &mut progress, Troubles::default()), None);
        assert_eq!(look(19, &mut progress, Troubles::default()), None);
        let text = look(20, &mut progress, Troubles { store: refused("store"), broker: None }).unwrap();
        assert!(text.contains("20 s") && text.contains("3 files") && text.contains("connection refused"), "{text}");
        let committing = uploading.go_on(Phase::Committing);
        assert_eq!(look(21, &mut progress, Troubles::default()), None);
        let text = look(50, &mut progress, Troubles { store: None, broker: refused("broker") }).unwrap();
        assert!(text.contains("3 records") && text.contains("broker: connection refused"), "{text}");
        drop(committing);
        assert_eq!(look(51, &mut progress, Troubles::default()), None);
        let _hashing = phases.enter(Phase::Hashing, 1);
        phases.reads("a/slow");
        assert_eq!(look(52, &mut progress, Troubles::default()), None);
        assert!(look(90, &mut progress, Troubles::default()).unwrap().contains("a/slow"));
    }
}
