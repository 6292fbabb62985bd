//! Every metric of the broker: name, unit, labels.
//!
//! | name | kind, unit | labels |
//! |---|---|---|
//! | `refstream_up` | gauge, 1 when serving | |
//! | `refstream_epoch` | gauge | |
//! | `refstream_leads` | gauge, 1 when it leads the cluster | |
//! | `refstream_brokers` | gauge, brokers that joined and were not recovered | |
//! | `refstream_damaged_journals` | gauge, journals of dead brokers that cannot be recovered; at the leader | |
//! | `refstream_appended_records_total` | counter, records | |
//! | `refstream_appended_bytes_total` | counter, bytes of encoded batches | |
//! | `refstream_appended_payload_bytes_total` | counter, payload bytes the records refer to or carry | |
//! | `refstream_append_refused_total` | counter, batches | `code` |
//! | `refstream_append_latency_seconds` | histogram, from receipt to answer of a request | |
//! | `refstream_journal_commit_latency_seconds` | histogram, of one slot at the store | |
//! | `refstream_journal_commit_bytes_total` | counter, bytes | |
//! | `refstream_slots_in_flight` | gauge | |
//! | `refstream_committed_slot` | gauge | |
//! | `refstream_pending_bytes` | gauge, batch bytes waiting or in flight | |
//! | `refstream_topics`, `refstream_open_segments`, `refstream_sealed_segments` | gauge | |
//! | `refstream_tail_streams`, `refstream_append_streams`, `refstream_connections` | gauge | |
//! | `refstream_delivered_records_total` | counter, records sent to tails | |
//! | `refstream_delivered_bytes_total` | counter, bytes of encoded batches sent to tails | |
//! | `refstream_grpc_received_bytes_total`, `refstream_grpc_sent_bytes_total` | counter, bytes on the wire | |
//! | `refstream_read_cache_bytes` | gauge | |
//! | `refstream_journal_reads_total`, `refstream_journal_read_bytes_total` | counter, ranged reads for tails | |
//! | `refstream_grants_total` | counter, grants given | `kind` |
//! | `refstream_calls_refused_total` | counter, calls without a right token | |
//! | `refstream_store_errors_total` | counter | `operation` |
//! | `refstream_compactions_total`, `refstream_compaction_failures_total` | counter | |
//! | `refstream_compaction_rows_total`, `refstream_compaction_bytes_total` | counter, rows and file bytes | |
//! | `refstream_compaction_latency_seconds` | histogram | |

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::sync::atomic::AtomicU64;

/// Bucket bounds of latencies, in seconds: 0.25 ms to 32 s.
fn latency() -> Histogram {
    Histogram::new((0..18).map(|power| 0.000_25 * f64::from(1_u32 << power)))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CodeLabel {
    pub(crate) code: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    pub(crate) kind: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OperationLabel {
    pub(crate) operation: &'static str,
}

/// The broker's metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) up: Gauge,
    pub(crate) epoch: Gauge<u64, AtomicU64>,
    pub(crate) leads: Gauge,
    pub(crate) brokers: Gauge,
    pub(crate) damaged_journals: Gauge,
    pub(crate) appended_records: Counter,
    pub(crate) appended_bytes: Counter,
    pub(crate) appended_payload_bytes: Counter,
    pub(crate) append_refused: Family<CodeLabel, Counter>,
    pub(crate) append_latency: Histogram,
    pub(crate) commit_latency: Histogram,
    pub(crate) commit_bytes: Counter,
    pub(crate) slots_in_flight: Gauge,
    pub(crate) committed_slot: Gauge<u64, AtomicU64>,
    pub(crate) pending_bytes: Gauge,
    pub(crate) topics: Gauge,
    pub(crate) open_segments: Gauge,
    pub(crate) sealed_segments: Gauge,
    pub(crate) tail_streams: Gauge,
    pub(crate) append_streams: Gauge,
    pub(crate) connections: Gauge,
    pub(crate) delivered_records: Counter,
    pub(crate) delivered_bytes: Counter,
    pub(crate) grpc_received_bytes: Counter,
    pub(crate) grpc_sent_bytes: Counter,
    pub(crate) read_cache_bytes: Gauge,
    pub(crate) journal_reads: Counter,
    pub(crate) journal_read_bytes: Counter,
    grants: Family<KindLabel, Counter>,
    pub(crate) calls_refused: Counter,
    pub(crate) store_errors: Family<OperationLabel, Counter>,
    pub(crate) compactions: Counter,
    pub(crate) compaction_failures: Counter,
    pub(crate) compaction_rows: Counter,
    pub(crate) compaction_bytes: Counter,
    pub(crate) compaction_latency: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("refstream"),
            up: Gauge::default(),
            epoch: Gauge::default(),
            leads: Gauge::default(),
            brokers: Gauge::default(),
            damaged_journals: Gauge::default(),
            appended_records: Counter::default(),
            appended_bytes: Counter::default(),
            appended_payload_bytes: Counter::default(),
            append_refused: Family::default(),
            append_latency: latency(),
            commit_latency: latency(),
            commit_bytes: Counter::default(),
            slots_in_flight: Gauge::default(),
            committed_slot: Gauge::default(),
            pending_bytes: Gauge::default(),
            topics: Gauge::default(),
            open_segments: Gauge::default(),
            sealed_segments: Gauge::default(),
            tail_streams: Gauge::default(),
            append_streams: Gauge::default(),
            connections: Gauge::default(),
            delivered_records: Counter::default(),
            delivered_bytes: Counter::default(),
            grpc_received_bytes: Counter::default(),
            grpc_sent_bytes: Counter::default(),
            read_cache_bytes: Gauge::default(),
            journal_reads: Counter::default(),
            journal_read_bytes: Counter::default(),
            grants: Family::default(),
            calls_refused: Counter::default(),
            store_errors: Family::default(),
            compactions: Counter::default(),
            compaction_failures: Counter::default(),
            compaction_rows: Counter::default(),
            compaction_bytes: Counter::default(),
            compaction_latency: latency(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("up", "1 when the broker serves", self.up.clone());
        r.register("epoch", "The broker's epoch", self.epoch.clone());
        r.register("leads", "1 when it leads the cluster", self.leads.clone());
        r.register("brokers", "Brokers that joined and were not recovered", self.brokers.clone());
        r.register(
            "damaged_journals",
            "Journals of dead brokers that cannot be recovered; told by the leader",
            self.damaged_journals.clone(),
        );
        r.register("appended_records", "Records committed by appends", self.appended_records.clone());
        r.register("appended_bytes", "Bytes of encoded batches committed by appends", self.appended_bytes.clone());
        r.register(
            "appended_payload_bytes",
            "Payload bytes that committed records refer to or carry",
            self.appended_payload_bytes.clone(),
        );
        r.register("append_refused", "Batches that were not appended, by error code", self.append_refused.clone());
        let seconds = || Unit::Seconds;
        r.register_with_unit(
            "append_latency",
            "From the receipt of an append to its answer",
            seconds(),
            self.append_latency.clone(),
        );
        r.register_with_unit(
            "journal_commit_latency",
            "One journal slot at the store",
            seconds(),
            self.commit_latency.clone(),
        );
        r.register("journal_commit_bytes", "Bytes of committed journal objects", self.commit_bytes.clone());
        r.register("slots_in_flight", "Journal slots created and not yet answered", self.slots_in_flight.clone());
        r.register("committed_slot", "The last committed journal slot", self.committed_slot.clone());
        r.register("pending_bytes", "Batch bytes waiting or in flight", self.pending_bytes.clone());
        r.register("topics", "Topics", self.topics.clone());
        r.register("open_segments", "Open segments", self.open_segments.clone());
        r.register("sealed_segments", "Sealed segments that no file holds yet", self.sealed_segments.clone());
        r.register("tail_streams", "Tail calls under way", self.tail_streams.clone());
        r.register("append_streams", "Append calls under way", self.append_streams.clone());
        r.register("connections", "gRPC connections", self.connections.clone());
        r.register("delivered_records", "Records sent to tails", self.delivered_records.clone());
        r.register("delivered_bytes", "Bytes of encoded batches sent to tails", self.delivered_bytes.clone());
        r.register("grpc_received_bytes", "Bytes received on gRPC connections", self.grpc_received_bytes.clone());
        r.register("grpc_sent_bytes", "Bytes sent on gRPC connections", self.grpc_sent_bytes.clone());
        r.register("read_cache_bytes", "Committed batches kept in memory for readers", self.read_cache_bytes.clone());
        r.register("journal_reads", "Ranged reads of journal objects for tails", self.journal_reads.clone());
        r.register("journal_read_bytes", "Bytes of those reads", self.journal_read_bytes.clone());
        r.register("grants", "Grants given, by kind", self.grants.clone());
        r.register("calls_refused", "Calls without a right token", self.calls_refused.clone());
        r.register("store_errors", "Failed store operations of the broker", self.store_errors.clone());
        r.register("compactions", "Compactions that ended well", self.compactions.clone());
        r.register("compaction_failures", "Compactions that failed", self.compaction_failures.clone());
        r.register("compaction_rows", "Rows written to files", self.compaction_rows.clone());
        r.register("compaction_bytes", "Bytes of files written", self.compaction_bytes.clone());
        r.register_with_unit(
            "compaction_latency",
            "One compaction of a topic",
            seconds(),
            self.compaction_latency.clone(),
        );
    }

    pub(crate) fn granted(&self, kind: &'static str) {
        self.grants.get_or_create(&KindLabel { kind }).inc();
    }

    pub(crate) fn store_error(&self, operation: &'static str) {
        self.store_errors.get_or_create(&OperationLabel { operation }).inc();
    }

    /// All of them, in OpenMetrics text.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

/// Counts something for as long as it lives.
#[derive(Debug)]
pub(crate) struct Counted(Gauge);

impl Counted {
    pub(crate) fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}
