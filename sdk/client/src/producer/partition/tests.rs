use super::*;
use crate::producer::batch::BatchState;
use refstream_format::batch::BatchBuilder;
use refstream_types::{PartitionId, Record, Value};

const ID: Identity = (ProducerId(7), ProducerEpoch(1));
const FAR: Duration = Duration::from_secs(1_000);

fn closed(records: u32) -> Closed {
    let mut builder = BatchBuilder::new();
    for _ in 0..records {
        builder.push(&Record::new(Value::Tombstone)).unwrap();
    }
    let batch = builder.finish(None).unwrap();
    Closed {
        partition: PartitionId(0),
        batch,
        state: Arc::new(BatchState::default()),
        records,
        tags: Vec::new(),
        room: 1,
    }
}

fn queue(batches: &[u32]) -> Queue {
    let mut queue = Queue::new(ID, false);
    for records in batches {
        queue.push(closed(*records), 0, FAR);
    }
    queue
}

/// Sends whatever may be sent; attempts are numbered from `from` on. Returns identity and first sequence of each batch.
fn send(queue: &mut Queue, from: u64) -> Vec<(u64, u64)> {
    let mut sent = Vec::new();
    while let Some(bytes) = queue.next(Attempt(from + sent.len() as u64)) {
        let stamp = EncodedBatch::parse(bytes).unwrap().header().producer.unwrap();
        sent.push((stamp.id.0, stamp.first.0));
    }
    sent
}

#[test]
fn sequences_count_records_and_at_most_five_are_under_way() {
    let mut queue = queue(&[2, 3, 1, 1, 1, 1]);
    assert_eq!(send(&mut queue, 0), [(7, 0), (7, 2), (7, 5), (7, 6), (7, 7)]);
    assert!(matches!(queue.answered(Attempt(0), Verdict::Appended), Consequence::Acked(_)));
    assert_eq!(send(&mut queue, 5), [(7, 8)]);
}

#[test]
fn answers_out_of_order_keep_sequences() {
    let mut queue = queue(&[2, 3, 1]);
    send(&mut queue, 0);
    assert!(matches!(queue.answered(Attempt(1), Verdict::Appended), Consequence::Acked(_)));
    queue.lost(Attempt(0));
    queue.lost(Attempt(2));
    assert_eq!(send(&mut queue, 10), [(7, 0), (7, 5)]);
    assert!(matches!(queue.answered(Attempt(10), Verdict::Appended), Consequence::Acked(_)));
    queue.push(closed(1), 0, FAR);
    assert_eq!(send(&mut queue, 20), [(7, 6)]);
}

#[test]
fn after_a_refusal_everything_is_sent_again_from_the_earliest_once_nothing_is_under_way() {
    let mut queue = queue(&[1, 1, 1]);
    send(&mut queue, 0);
    assert!(matches!(queue.answered(Attempt(0), Verdict::Retry { in_doubt: false }), Consequence::Again));
    assert_eq!(send(&mut queue, 10), []);
    assert!(matches!(queue.answered(Attempt(1), Verdict::OutOfSequence), Consequence::Again));
    assert_eq!(send(&mut queue, 10), []);
    assert!(matches!(queue.answered(Attempt(2), Verdict::UnknownProducer), Consequence::Again));
    assert_eq!(send(&mut queue, 10), [(7, 0), (7, 1), (7, 2)]);
}

#[test]
fn a_sequence_that_does_not_follow_although_nothing_failed_before_fails_its_records() {
    let mut queue = queue(&[1]);
    send(&mut queue, 0);
    let Consequence::Broken(failed) = queue.answered(Attempt(0), Verdict::OutOfSequence) else { panic!() };
    assert!(failed[0].may_have_happened());
}

#[test]
fn repetitions_are_byte_equal() {
    let mut queue = queue(&[4]);
    let first = queue.next(Attempt(0)).unwrap();
    queue.lost(Attempt(0));
    assert_eq!(queue.next(Attempt(1)).unwrap(), first);
}

#[test]
fn a_refused_batch_fails_alone_and_its_sequences_are_used_by_the_next() {
    let mut queue = queue(&[2, 3]);
    send(&mut queue, 0);
    let Consequence::Failed(failed) = queue.answered(Attempt(0), Verdict::Refused { in_doubt: false }) else {
        panic!()
    };
    assert!(!failed.may_have_happened());
    assert!(matches!(queue.answered(Attempt(1), Verdict::OutOfSequence), Consequence::Again));
    assert_eq!(send(&mut queue, 2), [(7, 0)]);
}

#[test]
fn the_batch_behind_a_refused_one_goes_on() {
    let mut queue = queue(&[2, 3]);
    let _ = queue.next(Attempt(0));
    assert!(matches!(queue.answered(Attempt(0), Verdict::Refused { in_doubt: false }), Consequence::Failed(_)));
    assert_eq!(send(&mut queue, 1), [(7, 0)]);
}

#[test]
fn an_unknown_identity_is_renewed_when_nothing_can_have_been_appended() {
    let mut queue = queue(&[2, 3]);
    send(&mut queue, 0);
    assert!(matches!(queue.answered(Attempt(0), Verdict::UnknownProducer), Consequence::Again));
    assert!(matches!(queue.answered(Attempt(1), Verdict::UnknownProducer), Consequence::Again));
    assert_eq!(send(&mut queue, 10), []);
    assert!(queue.needs_identity());
    queue.set_identity((ProducerId(8), ProducerEpoch(0)));
    assert_eq!(send(&mut queue, 10), [(8, 0), (8, 2)]);
}

#[test]
fn an_unknown_identity_in_doubt_fails_what_may_be_there_and_keeps_the_rest() {
    let mut queue = queue(&[2]);
    send(&mut queue, 0);
    queue.lost(Attempt(0));
    send(&mut queue, 1);
    queue.push(closed(3), 0, FAR);
    let Consequence::Broken(failed) = queue.answered(Attempt(1), Verdict::UnknownProducer) else { panic!() };
    assert_eq!(failed.len(), 1);
    assert!(failed[0].may_have_happened());
    queue.set_identity((ProducerId(9), ProducerEpoch(0)));
    assert_eq!(send(&mut queue, 10), [(9, 0)]);
}

#[test]
fn expiry_fails_what_is_due_and_what_may_be_there() {
    let mut queue = Queue::new(ID, false);
    queue.push(closed(1), 0, Duration::from_secs(1));
    queue.push(closed(1), 0, Duration::from_secs(2));
    queue.push(closed(1), 0, Duration::from_secs(3));
    let _ = queue.next(Attempt(0));
    assert!(queue.expire(Duration::from_millis(500)).is_empty());
    let expired = queue.expire(Duration::from_secs(2));
    assert_eq!(expired.iter().map(Pending::may_have_happened).collect::<Vec<_>>(), [true, false]);
    assert!(matches!(queue.answered(Attempt(0), Verdict::Appended), Consequence::Nothing));
    queue.set_identity((ProducerId(9), ProducerEpoch(0)));
    assert_eq!(send(&mut queue, 10), [(9, 0)]);
}

#[test]
fn expiry_of_what_was_never_sent_keeps_the_identity() {
    let mut queue = Queue::new(ID, false);
    queue.push(closed(1), 0, Duration::from_secs(1));
    queue.push(closed(1), 0, FAR);
    assert_eq!(queue.expire(Duration::from_secs(1)).len(), 1);
    assert_eq!(send(&mut queue, 0), [(7, 0)]);
}

#[test]
fn a_batch_is_sent_once_it_is_logged_under_the_stamp_it_has() {
    let mut queue = Queue::new(ID, true);
    queue.push(closed(2), 1, FAR);
    queue.push(closed(3), 2, FAR);
    let logged = queue.unlogged();
    let firsts =
        |logged: &[ToLog]| logged.iter().map(|log| (log.number, log.stamp().unwrap().first.0)).collect::<Vec<_>>();
    assert_eq!(firsts(&logged), [(1, 0), (2, 2)]);
    assert!(queue.unlogged().is_empty(), "each is logged once");
    assert!(queue.next(Attempt(1)).is_none());
    queue.logged(2, logged[1].stamp().unwrap());
    assert!(queue.next(Attempt(1)).is_none(), "order is kept");
    queue.logged(1, logged[0].stamp().unwrap());
    assert_eq!(&queue.next(Attempt(1)).unwrap(), logged[0].batch.bytes());
    assert!(queue.next(Attempt(2)).is_some());
    // The first is refused for good: the second takes its sequences, and is logged again before it is sent again.
    assert!(matches!(queue.answered(Attempt(1), Verdict::Refused { in_doubt: false }), Consequence::Failed(_)));
    assert!(matches!(queue.answered(Attempt(2), Verdict::OutOfSequence), Consequence::Again));
    assert!(queue.next(Attempt(3)).is_none());
    let again = queue.unlogged();
    assert_eq!(firsts(&again), [(2, 0)]);
    assert!(queue.next(Attempt(3)).is_none());
    queue.logged(2, logged[1].stamp().unwrap());
    assert!(queue.next(Attempt(3)).is_none(), "the old stamp does not count");
    queue.logged(2, again[0].stamp().unwrap());
    assert_eq!(&queue.next(Attempt(3)).unwrap(), again[0].batch.bytes());
}
