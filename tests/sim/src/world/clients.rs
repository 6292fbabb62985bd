//! Clients: producers that send again, and somebody who creates the topics.

use super::{MOST_PAUSE, Waiter, World};
use crate::{
    history::Place,
    producer::{Lane, Pending, batch},
};
use rand::Rng;
use refstream_core::{AppendError, Input, Reply, Ticket, TopicOperation};
use refstream_filer_adapter::Runtime;
use refstream_types::{AckMode, PartitionId, TopicId};
use std::{collections::VecDeque, time::Duration};

impl World {
    pub(super) fn ticket(&mut self, waiter: Waiter) -> Ticket {
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, waiter);
        Ticket(self.next_ticket)
    }

    pub(super) fn reply(&mut self, process: usize, ticket: u64, reply: Reply) {
        let Some(waiter) = self.tickets.remove(&ticket) else {
            return self.history.violation(format!("ticket {ticket} was answered twice: {reply:?}"));
        };
        match (waiter, reply) {
            (Waiter::Append { lane, batch }, Reply::Append(outcomes)) => {
                for outcome in outcomes {
                    self.appended(lane, batch, ticket, outcome);
                }
            }
            (Waiter::Open { producer }, Reply::Producer(result)) => {
                self.opening[producer] = None;
                if let (Ok((id, _)), None) = (result, self.producers[producer]) {
                    if self.producers.contains(&Some(id)) {
                        self.history.violation(format!("producer id {id} was given out twice"));
                    }
                    self.producers[producer] = Some(id);
                }
            }
            (Waiter::Latest { floor }, Reply::Confirmed(Ok(()))) => {
                // A broker answers for the partitions that it serves.
                let (asked, mine) = (&self.processes[process], self.epoch_of(process));
                let serves = |(topic, partition): &Place| {
                    let topic = asked.state.topics.get(topic);
                    topic.and_then(|t| t.open_segment(*partition)).is_some_and(|open| Some(open.owner) == mine)
                };
                let floor = floor.into_iter().filter(|(place, _)| serves(place)).collect();
                self.history.latest(&floor, &asked.ends);
            }
            _ => {}
        }
    }

    fn appended(
        &mut self,
        lane: usize,
        batch: usize,
        ticket: u64,
        outcome: Result<refstream_core::Appended, AppendError>,
    ) {
        self.say(|| format!("batch {batch} of lane {lane}: {outcome:?}"));
        let now = self.clock.now();
        let is_main = self.topics.contains(&Some(self.lanes[lane].place.0));
        match outcome {
            Ok(appended) => {
                self.history.acked(batch, appended.base_offset, appended.duplicate);
                let lane = &mut self.lanes[lane];
                if let Some(pending) = lane.pending.iter_mut().find(|pending| pending.id == batch) {
                    pending.acked = true;
                    pending.failed = false;
                    pending.ticket = None;
                }
                while lane.pending.front().is_some_and(|pending| pending.acked) {
                    lane.pending.pop_front();
                }
            }
            Err(error) => {
                let lane_index = lane;
                let lane = &mut self.lanes[lane];
                let first = lane.is_first(ticket);
                if let AppendError::OutOfSequence { .. }
                | AppendError::UnknownProducer(_)
                | AppendError::ProducerFenced { .. } = &error
                    && first
                {
                    let what = format!("batch {batch}, the next one of lane {lane_index}, was refused: {error}");
                    return self.history.violation(what);
                }
                if is_main && matches!(error, AppendError::UnknownTopic(_)) {
                    // Lanes exist once the log has the topic, and it is never deleted: a client would give up.
                    let what = format!("lane {lane_index}, batch {batch}: a topic that exists is said not to");
                    return self.history.violation(what);
                }
                if lane.producer.is_none() {
                    // It is never sent again.
                    lane.pending.retain(|pending| pending.id != batch);
                    if error != AppendError::OutcomeUnknown {
                        self.history.refused(batch);
                    }
                    return;
                }
                if let AppendError::UnknownTopic(_) = error
                    && !is_main
                {
                    lane.left = 0;
                    return lane.pending.clear();
                }
                if let Some(pending) = lane.pending.iter_mut().find(|pending| pending.ticket == Some(ticket)) {
                    pending.ticket = None;
                    pending.failed = true;
                    lane.at = lane.at.min(now + Duration::from_millis(30));
                }
            }
        }
    }

    pub(super) fn advance_lane(&mut self, index: usize) {
        let now = self.clock.now();
        let patience = self.plan.patience;
        let lane = &mut self.lanes[index];
        for pending in &mut lane.pending {
            if pending.ticket.is_some() && pending.patience <= now {
                pending.ticket = None;
                pending.failed = true;
            }
        }
        if lane.producer.is_none() {
            // Nobody knows, and it is not sent again.
            lane.pending.retain(|pending| !pending.failed && !pending.acked);
        }
        let under_way = lane.pending.iter().any(|pending| pending.ticket.is_some());
        if lane.must_repeat() {
            if under_way {
                lane.at = now + Duration::from_millis(10);
                return;
            }
            let ids: Vec<_> = lane.pending.iter().filter(|pending| !pending.acked).map(|pending| pending.id).collect();
            lane.at = now + patience / 4;
            if let Some(target) = self.target(Some(self.lanes[index].place)) {
                for id in ids {
                    self.send(index, id, target);
                }
            }
            return;
        }
        lane.at = now + lane.pause.mul_f64(self.random.random_range(0.0..2.0)) + Duration::from_micros(50);
        if lane.left == 0 || lane.pending.len() >= lane.depth {
            lane.at = lane.at.max(now + Duration::from_millis(5));
            return;
        }
        let stamp = match lane.producer {
            None => None,
            Some(producer) => match self.producers[producer] {
                Some(id) => Some((producer, id)),
                None => return self.open_producer(producer),
            },
        };
        let Some(target) = self.target(Some(self.lanes[index].place)) else { return };
        let lane = &mut self.lanes[index];
        lane.left -= 1;
        let records = self.random.random_range(1..=4);
        let first = lane.next_sequence;
        lane.next_sequence += u64::from(records);
        let number = self.history.count();
        let batch = batch(number, records, stamp.map(|(_, id)| (id, first)));
        let place = lane.place;
        let id = self.history.sent(batch.bytes().clone(), place, stamp.map(|(producer, _)| (producer, first)), records);
        let pending = Pending { id, batch, ticket: None, patience: now, failed: false, acked: false };
        self.lanes[index].pending.push_back(pending);
        self.send(index, id, target);
    }

    fn send(&mut self, index: usize, id: usize, target: usize) {
        let ticket = self.ticket(Waiter::Append { lane: index, batch: id });
        let patience = self.clock.now() + self.plan.patience;
        let lane = &mut self.lanes[index];
        let (topic, partition) = lane.place;
        let bulk = lane.bulk;
        let Some(pending) = lane.pending.iter_mut().find(|pending| pending.id == id) else { return };
        pending.ticket = Some(ticket.0);
        pending.patience = patience;
        pending.failed = false;
        let batches = vec![(partition, pending.batch.clone())];
        self.give(target, Input::Append { ticket, topic, batches, ack: AckMode::Durable, bulk });
    }

    fn open_producer(&mut self, producer: usize) {
        let now = self.clock.now();
        if self.opening[producer].is_some_and(|until| until > now) {
            return;
        }
        self.opening[producer] = Some(now + self.plan.patience);
        if let Some(target) = self.target(None) {
            let ticket = self.ticket(Waiter::Open { producer });
            self.give(target, Input::OpenProducer { ticket });
        }
    }

    pub(super) fn create_topics(&mut self) {
        if self.topics.iter().all(Option::is_some) {
            return;
        }
        self.creating_at = self.clock.now() + Duration::from_millis(60);
        self.observer.follow(&mut self.history);
        for index in 0..self.topics.len() {
            if self.topics[index].is_some() {
                continue;
            }
            let Ok(name) = format!("topic-{index}").parse() else { continue };
            if let Some(topic) = self.observer.state.topic_by_name(&name) {
                let id = topic.id;
                self.topics[index] = Some(id);
                self.make_lanes(index, id);
            } else if let Some(target) = self.target(None) {
                let config = self.plan.topics[index].clone();
                let ticket = self.ticket(Waiter::Other);
                self.give(target, Input::Topic { ticket, operation: TopicOperation::Create { name, config } });
            }
        }
    }

    fn make_lanes(&mut self, index: usize, topic: TopicId) {
        for partition in 0..self.plan.topics[index].partitions {
            let place: Place = (topic, PartitionId(partition));
            for producer in (0..self.plan.producers).map(Some).chain([None]) {
                let depth = if producer.is_some() { self.plan.depth } else { 2 };
                self.lanes.push(Lane {
                    place,
                    producer,
                    next_sequence: 0,
                    left: self.random.random_range(0..=self.plan.batches),
                    depth,
                    bulk: self.random.random_bool(0.3),
                    pending: VecDeque::new(),
                    pause: if self.calm { MOST_PAUSE } else { self.plan.pause },
                    at: self.clock.now(),
                });
            }
        }
    }
}
