//! A record as JSON: the names of the Parquet columns, but `partition` and `offset`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use refstream::{
    Delivery,
    stores::BlobStore,
    types::{ContentEncoding, Reference, Value as RecordValue},
};
use serde_json::{Map, Value, json};

/// The object `payload` of a reference: the fields of Parquet's `FILE` type.
pub(crate) fn payload(reference: &Reference, store: Option<&dyn BlobStore>) -> Value {
    let uri = store.map_or_else(|| format!("{}:{}", reference.store, reference.key), |s| s.uri(&reference.key));
    json!({
        "uri": uri,
        "offset": reference.offset,
        "size": reference.size,
        "content_type": reference.content_type,
        "checksum": reference.checksum,
    })
}

/// One record.
pub(crate) fn record(delivery: &Delivery, store: Option<&dyn BlobStore>) -> Value {
    let record = &delivery.record;
    let mut object = Map::new();
    let mut set = |name: &str, value: Value| {
        object.insert(name.into(), value);
    };
    set("topic", json!(delivery.topic));
    set("partition", json!(delivery.partition));
    set("offset", json!(delivery.offset));
    set("append_time", json!(delivery.append_time));
    set("event_time", json!(record.event_time));
    match record.key.as_deref().map(std::str::from_utf8) {
        None => set("key", Value::Null),
        Some(Ok(key)) => set("key", json!(key)),
        Some(Err(_)) => {
            set("key", Value::Null);
            set("key_bytes", json!(record.key.as_deref().map(|key| STANDARD.encode(key))));
        }
    }
    match &record.value {
        RecordValue::Reference(reference) => {
            set("size", json!(reference.content_size));
            set("content_hash", json!(reference.content_hash));
            set("payload", payload(reference, store));
            if reference.encoding == ContentEncoding::Zstd {
                set("content_encoding", json!("zstd"));
            }
            set("store", json!(reference.store));
            if let Some(etag) = &reference.etag {
                set("payload_etag", json!(etag));
            }
            if let Some(version) = &reference.version {
                set("payload_version", json!(version));
            }
        }
        RecordValue::Inline { bytes, content_hash } => {
            set("size", json!(bytes.len()));
            set("content_hash", json!(content_hash));
            set("value", json!(STANDARD.encode(bytes)));
        }
        RecordValue::Tombstone => {
            set("size", Value::Null);
            set("content_hash", Value::Null);
            set("value", Value::Null);
        }
    }
    if let Some(name) = &record.source_name {
        set("source_name", json!(name));
    }
    if let Some(mtime) = &record.source_mtime {
        set("source_mtime", json!(mtime));
    }
    let mut attributes = Map::new();
    let mut headers = Vec::new();
    for header in &record.headers {
        match std::str::from_utf8(&header.value) {
            Ok(text) => match attributes.get_mut(&header.name) {
                None => {
                    attributes.insert(header.name.clone(), json!(text));
                }
                // A name that repeats becomes a list of its values.
                Some(Value::Array(values)) => values.push(json!(text)),
                Some(first) => *first = json!([first.take(), text]),
            },
            Err(_) => headers.push(json!({ "key": header.name, "value": STANDARD.encode(&header.value) })),
        }
    }
    set("attributes", Value::Object(attributes));
    if !headers.is_empty() {
        set("headers", Value::Array(headers));
    }
    if let Some(producer) = delivery.producer {
        set("producer_id", json!(producer.id));
        set("producer_epoch", json!(producer.epoch));
        set("producer_seq", json!(producer.first));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use refstream::types::{Header, Offset, PartitionId, Record, Timestamp};

    #[test]
    fn nothing_of_a_record_is_lost() {
        let mut inner = Record::new(RecordValue::Tombstone);
        inner.key = Some(b"\xff".as_slice().into());
        for (name, value) in [("a", b"1".as_slice()), ("a", b"2"), ("b", b"3"), ("c", b"\xff")] {
            inner.headers.push(Header { name: name.into(), value: value.into() });
        }
        let delivery = Delivery {
            topic: "t".parse().unwrap(),
            partition: PartitionId(1),
            offset: Offset(2),
            append_time: Timestamp::from_micros(0),
            producer: None,
            record: inner,
        };
        let value = record(&delivery, None);
        assert_eq!(value["attributes"], json!({ "a": ["1", "2"], "b": "3" }));
        assert_eq!(value["headers"], json!([{ "key": "c", "value": "/w==" }]));
        assert_eq!(value["key_bytes"], json!("/w=="));
        assert_eq!(value["append_time"], json!("1970-01-01T00:00:00Z"));
    }
}
