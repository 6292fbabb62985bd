use super::*;

#[test]
fn partitions_take_turns_and_each_keeps_its_order() {
    let batch = |partition, attempt| (partition, Attempt(attempt), Bytes::from(vec![attempt as u8]));
    let turns = in_turns(vec![batch(1, 10), batch(1, 11), batch(1, 12), batch(4, 20), batch(7, 30), batch(7, 31)]);
    let order: Vec<_> = turns.iter().map(|(partition, attempt, _)| (*partition, attempt.0)).collect();
    assert_eq!(order, [(1, 10), (4, 20), (7, 30), (1, 11), (7, 31), (1, 12)]);
    assert!(turns.iter().all(|(_, attempt, batch)| u64::from(batch[0]) == attempt.0), "each has its own bytes");
}
