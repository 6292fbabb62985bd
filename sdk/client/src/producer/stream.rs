//! One Append stream to one broker.

use super::{engine::Input, partition::Attempt};
use crate::broker::{Failure, Line, MAX_ANSWER_BYTES};
use refstream_proto::v1::{AppendRequest, records_client::RecordsClient};
use std::{collections::HashMap, time::Duration};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

/// Identifies a stream among all that a producer ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StreamId(pub(super) u64);

/// A stream, and the attempts that were made on it and not answered yet: by request, in the order of its batches.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    requests: mpsc::UnboundedSender<AppendRequest>,
    pub(super) under_way: HashMap<u64, Vec<(u32, Attempt)>>,
    /// Since when nothing was answered, while something is under way.
    pub(super) silent_since: Option<Duration>,
    task: JoinHandle<()>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream {
    /// Opens a stream; answers and its end arrive as inputs of the engine.
    pub(super) fn open(id: StreamId, endpoint: String, channel: Line, inputs: mpsc::UnboundedSender<Input>) -> Self {
        let (requests, queue) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let status = exchange(id, channel, queue, &inputs).await;
            let why = Failure::of(&endpoint, &status).why;
            let _ = inputs.send(Input::StreamEnded { stream: id, endpoint, why });
        });
        Self { id, requests, under_way: HashMap::new(), silent_since: None, task }
    }

    /// Sends a request. When the stream has ended meanwhile, its end is an input already and covers these attempts too.
    pub(super) fn send(&mut self, request: AppendRequest, attempts: Vec<(u32, Attempt)>, now: Duration) {
        self.silent_since.get_or_insert(now);
        self.under_way.insert(request.request_id, attempts);
        let _ = self.requests.send(request);
    }
}

impl Stream {
    /// The broker answered something.
    pub(super) fn heard(&mut self, now: Duration) {
        self.silent_since = (!self.under_way.is_empty()).then_some(now);
    }
}

async fn exchange(
    id: StreamId,
    channel: Line,
    queue: mpsc::UnboundedReceiver<AppendRequest>,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Status {
    let mut client = RecordsClient::new(channel)
        .max_decoding_message_size(MAX_ANSWER_BYTES)
        .max_encoding_message_size(MAX_ANSWER_BYTES);
    let mut answers = match client.append(UnboundedReceiverStream::new(queue)).await {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    loop {
        match answers.message().await {
            Ok(Some(response)) => {
                if inputs.send(Input::Answered { stream: id, response }).is_err() {
                    return Status::cancelled("the producer was closed");
                }
            }
            Ok(None) => return Status::unavailable("the broker ended the stream"),
            Err(status) => return status,
        }
    }
}
