use super::*;

const PARTITION: PartitionId = PartitionId(3);
const LATER: Duration = Duration::from_secs(100);

fn stamp(epoch: u32, first: u64) -> ProducerStamp {
    ProducerStamp { id: ProducerId(7), epoch: ProducerEpoch(epoch), first: Sequence(first) }
}

fn place(producers: &mut Producers, epoch: u32, first: u64, records: u32, base: u64) {
    assert_eq!(producers.judge(PARTITION, stamp(epoch, first), records), Verdict::Fresh);
    let batch = RememberedBatch {
        first: Sequence(first),
        records,
        base_offset: Offset(base),
        append_time: Timestamp::from_micros(base as i64),
    };
    producers.placed(PARTITION, stamp(epoch, first), batch, LATER);
}

#[test]
fn a_retry_is_recognised_among_the_last_five() {
    let mut producers = Producers::default();
    for n in 0..7 {
        place(&mut producers, 0, n * 10, 10, 100 + n * 10);
    }
    for n in 2..7 {
        let verdict = producers.judge(PARTITION, stamp(0, n * 10), 10);
        assert!(matches!(verdict, Verdict::Duplicate { base_offset: Offset(o), .. } if o == 100 + n * 10));
    }
    let expected = AppendError::OutOfSequence { given: Sequence(10), expected: Sequence(70) };
    assert_eq!(producers.judge(PARTITION, stamp(0, 10), 10), Verdict::Refused(expected));
}

#[test]
fn a_batch_of_another_length_is_no_retry() {
    let mut producers = Producers::default();
    place(&mut producers, 0, 0, 10, 0);
    let expected = AppendError::OutOfSequence { given: Sequence(0), expected: Sequence(10) };
    assert_eq!(producers.judge(PARTITION, stamp(0, 0), 9), Verdict::Refused(expected));
}

#[test]
fn an_unknown_producer_must_start_at_zero() {
    let producers = Producers::default();
    assert_eq!(producers.judge(PARTITION, stamp(4, 0), 1), Verdict::Fresh);
    let refusal = AppendError::UnknownProducer(ProducerId(7));
    assert_eq!(producers.judge(PARTITION, stamp(4, 1), 1), Verdict::Refused(refusal));
}

#[test]
fn a_newer_epoch_fences_the_older() {
    let mut producers = Producers::default();
    place(&mut producers, 1, 0, 10, 0);
    let refusal = AppendError::OutOfSequence { given: Sequence(10), expected: Sequence(0) };
    assert_eq!(producers.judge(PARTITION, stamp(2, 10), 10), Verdict::Refused(refusal));
    place(&mut producers, 2, 0, 10, 10);
    let refusal = AppendError::ProducerFenced { given: ProducerEpoch(1), current: ProducerEpoch(2) };
    assert_eq!(producers.judge(PARTITION, stamp(1, 10), 10), Verdict::Refused(refusal));
}

#[test]
fn sequences_are_kept_for_each_partition() {
    let mut producers = Producers::default();
    place(&mut producers, 0, 0, 10, 0);
    assert_eq!(producers.judge(PartitionId(4), stamp(0, 0), 10), Verdict::Fresh);
}

#[test]
fn states_carry_over_and_silence_counts_towards_the_expiry() {
    let mut producers = Producers::default();
    place(&mut producers, 0, 0, 10, 0);
    let expiry = Duration::from_secs(700);
    let mut successor = Producers::default();
    let last = Timestamp::from_micros(500_000_000);
    successor.take_over(&producers.states(), last, Duration::ZERO, expiry);
    assert_eq!(successor.states(), producers.states());
    let expiries: Vec<_> = successor.expiries().collect();
    assert_eq!(expiries, [(Duration::from_secs(200), (PARTITION, ProducerId(7)))]);
    successor.forget(&[(PARTITION, ProducerId(7))]);
    assert!(successor.states().is_empty());
}
