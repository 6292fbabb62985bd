//! Uploads the files named on the command line and submits a reference to each, in order.
//!
//!     refstream up &
//!     refstream topic create photos
//!     cargo run -p refstream --example produce -- photos a.jpg b.jpg

use refstream::{
    Client, ProducerOptions, Source, UploadOptions,
    types::{Record, TopicName, Value},
};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let topic: TopicName = arguments.next().ok_or("usage: produce TOPIC FILE...")?.parse()?;

    let client = Client::connect("http://127.0.0.1:7400").await?;
    let uploader = client.uploader(&topic, UploadOptions::default()).await?;
    let producer = client.producer(&topic, ProducerOptions::default()).await?;

    // Side by side, so that small payloads share a pack. A receipt proves that the payload is durable; only a receipt makes a reference.
    let paths: Vec<String> = arguments.collect();
    let uploads = paths.iter().map(|path| uploader.upload(Source::File(path.into()), None, Some(path.clone())));
    let receipts = futures::future::try_join_all(uploads).await?;

    let mut tickets = Vec::new();
    for (path, receipt) in paths.iter().zip(receipts) {
        let mut record = Record::new(Value::Reference(Box::new(receipt.into_reference())));
        record.key = Some(path.clone().into());
        // Waits only while too much is in flight; the ack comes later, in any case once.
        tickets.push((path, producer.send(record).await?));
    }
    for (path, ticket) in tickets {
        let ack = ticket.ack().await?;
        println!("{path}: partition {}, offset {}", ack.partition, ack.offset);
    }
    Ok(())
}
