//! Prints every record of a topic and the size of its verified payload, from the oldest on, and goes on with new ones.
//!
//!     cargo run -p refstream --example consume --features parquet -- photos
//!
//! Without the feature `parquet` a consumer cannot read closed segments, which are files.

use refstream::{Client, ConsumerOptions, From, types::TopicName};
use std::error::Error;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let topic: TopicName = std::env::args().nth(1).ok_or("usage: consume TOPIC")?.parse()?;

    let client = Client::connect("http://127.0.0.1:7400").await?;
    let mut consumer = client.consumer(&topic, ConsumerOptions { from: From::Earliest, follow: true }).await?;
    while let Some(delivery) = consumer.next().await? {
        print!("{}/{}: ", delivery.partition, delivery.offset);
        match delivery.payload(&client) {
            // Never wrong bytes: a payload that is damaged or gone is an error that names the object.
            Some(payload) => match payload.bytes().await {
                Ok(bytes) => println!("{} bytes", bytes.len()),
                Err(error) => println!("{error}"),
            },
            None => println!("{:?}", delivery.record.value),
        }
    }
    Ok(())
}
