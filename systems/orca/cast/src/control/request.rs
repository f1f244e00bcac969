//! Requests at the control socket: the first line of a connection.

use std::net::{IpAddr, SocketAddr};

use rackweave_core::Rate;
use rackweave_orca::host::Spread;
use serde_json::{Map, Value, json};

use super::proof::KeyProof;
use crate::format::check_path;

/// A request to send the stream that follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRequest {
    /// The addresses of the receivers.
    pub to: Vec<SocketAddr>,
    /// The file name for receivers; unused with `records`.
    pub name: String,
    /// How packets reach all receivers; the agent chooses if it is `None`.
    pub spread: Option<Spread>,
    /// An upper limit on the sending rate.
    pub rate: Option<Rate>,
    /// The largest IP packet in bytes; `None` for the MTU of the route.
    pub mtu: Option<u32>,
    /// Set if the bytes are a whole stream of records instead of the content of one file.
    pub records: Option<Records>,
    /// Whether the bytes come in [blocks](super::stream::Blocks) with an end, so that a connection that is closed early is not taken for
    /// the end of the stream.
    pub blocks: bool,
    /// The proof of the key that the agent must have; `None` to require no particular key.
    pub key: Option<KeyProof>,
}

/// A stream of [records](crate::format), as `cast send` creates it from files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// The identity of its content.
    pub stream: u128,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes of file content in it.
    pub content: u64,
}

/// A request to receive the next stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Whether the application receives a whole stream of records ([`receive`](super::stream::receive)) instead of the bytes
    /// of one file.
    pub records: bool,
    /// Whether the bytes of one file come in [blocks](super::stream::BlockSink) with an end, which [`read_stream`](super::stream::read_stream)
    /// reads. Without it an application cannot tell a stream that was cut off from a complete one.
    pub blocks: bool,
    /// Accept streams from these hosts only; if empty, from all hosts that the agent admits.
    pub from: Vec<IpAddr>,
    /// The proof of the key that the agent must have; `None` to require no particular key.
    pub key: Option<KeyProof>,
}

impl Default for ReceiveRequest {
    fn default() -> Self {
        Self { records: false, blocks: true, from: Vec::new(), key: None }
    }
}

/// A request at the control socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
    /// Send the bytes that follow.
    Send(Box<SendRequest>),
    /// Receive the next stream.
    Receive(ReceiveRequest),
    /// Describe all sessions in one line of JSON.
    Sessions,
}

impl SendRequest {
    /// Returns the request as a JSON object: the first line of the connection.
    #[must_use]
    pub fn line(&self) -> Value {
        let to: Vec<_> = self.to.iter().map(ToString::to_string).collect();
        let mut send = json!({ "to": to, "name": self.name });
        let records = self.records.map(|records| {
            let stream = format!("{:032x}", records.stream);
            json!({ "stream": stream, "length": records.length, "content": records.content })
        });
        let more = [
            ("spread", self.spread.map(|spread| json!(spread.name()))),
            ("rate", self.rate.map(|rate| json!(rate.0))),
            ("mtu", self.mtu.map(|mtu| json!(mtu))),
            ("records", records),
            ("blocks", self.blocks.then_some(json!(true))),
            ("key", self.key.map(KeyProof::to_json)),
        ];
        for (key, value) in more {
            if let Some(value) = value {
                send[key] = value;
            }
        }
        json!({ "send": send })
    }
}

impl ReceiveRequest {
    /// Returns the request as a JSON object: the first line of the connection.
    #[must_use]
    pub fn line(&self) -> Value {
        let from: Vec<_> = self.from.iter().map(ToString::to_string).collect();
        let mut receive = json!({ "records": self.records, "from": from });
        if !self.blocks {
            receive["blocks"] = json!(false);
        }
        if let Some(key) = &self.key {
            receive["key"] = key.to_json();
        }
        json!({ "receive": receive })
    }
}

/// Reads an optional member. It is an error if the member exists but is not `what` it must be.
fn optional<T>(
    map: &Map<String, Value>,
    key: &str,
    what: &str,
    read: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>, String> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| format!("`{key}` must be {what}")),
    }
}

pub(super) fn parse(line: &[u8]) -> Result<Request, String> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| format!("the first line must be a JSON object: {error}"))?;
    let none = Map::new();
    if let Some(receive) = value.get("receive") {
        return parse_receive(receive.as_object().unwrap_or(&none)).map(Request::Receive);
    }
    if value.get("sessions").is_some() {
        return Ok(Request::Sessions);
    }
    let send =
        value.get("send").ok_or("the first line must have `send`, `receive` or `sessions`")?;
    parse_send(send.as_object().unwrap_or(&none)).map(|request| Request::Send(Box::new(request)))
}

fn parse_receive(receive: &Map<String, Value>) -> Result<ReceiveRequest, String> {
    let addresses = |value: &Value| -> Option<Vec<IpAddr>> {
        value.as_array()?.iter().map(|value| value.as_str()?.parse().ok()).collect()
    };
    Ok(ReceiveRequest {
        records: optional(receive, "records", "true or false", Value::as_bool)?.unwrap_or(false),
        blocks: optional(receive, "blocks", "true or false", Value::as_bool)?.unwrap_or(true),
        from: optional(receive, "from", "a list of addresses", addresses)?.unwrap_or_default(),
        key: optional(receive, "key", "a proof of a key", KeyProof::from_json)?,
    })
}

fn parse_send(send: &Map<String, Value>) -> Result<SendRequest, String> {
    let to = send.get("to").and_then(Value::as_array).ok_or("`send` must have `to`, a list")?;
    let address = |value: &Value| {
        let text = value.as_str().ok_or("`to` must be a list of \"ADDR:PORT\"")?;
        text.parse().map_err(|_| format!("`{text}` is not ADDR:PORT"))
    };
    let to = to.iter().map(address).collect::<Result<Vec<SocketAddr>, String>>()?;
    if to.is_empty() {
        return Err("`to` is empty".to_owned());
    }
    let name = send.get("name").and_then(Value::as_str).unwrap_or("stream");
    check_path(name.as_bytes()).map_err(|error| format!("`name`: {error}"))?;
    let spread = |value: &Value| Spread::from_name(value.as_str()?);
    let mtu = |value: &Value| {
        let mtu = value.as_u64()?;
        (256..=65_000).contains(&mtu).then_some(mtu as u32)
    };
    let records = |value: &Value| {
        let stream = value.get("stream")?.as_str()?;
        Some(Records {
            stream: u128::from_str_radix(stream, 16).ok()?,
            length: value.get("length")?.as_u64()?,
            content: value.get("content")?.as_u64()?,
        })
    };
    Ok(SendRequest {
        to,
        name: name.to_owned(),
        spread: optional(send, "spread", "labels, relay, multicast or unicast", spread)?,
        rate: optional(send, "rate", "bits per second, at least 1", |value| {
            value.as_u64().filter(|rate| *rate > 0).map(Rate)
        })?,
        mtu: optional(send, "mtu", "from 256 to 65000", mtu)?,
        records: optional(send, "records", "a stream with its length and content", records)?,
        blocks: optional(send, "blocks", "true or false", Value::as_bool)?.unwrap_or(false),
        key: optional(send, "key", "a proof of a key", KeyProof::from_json)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_parsed_or_refused() {
        let good = br#"{"send": {"to": ["127.0.0.1:5", "[::1]:6"], "name": "a/b"}}"#;
        let Ok(Request::Send(request)) = parse(good) else { panic!("{:?}", parse(good)) };
        assert_eq!((request.to.len(), request.name.as_str(), request.spread), (2, "a/b", None));
        assert_eq!(parse(br#"{"receive": {}}"#), Ok(Request::Receive(ReceiveRequest::default())));
        assert_eq!(parse(br#"{"sessions": {}}"#), Ok(Request::Sessions));
        for bad in [
            &b""[..],
            b"[]",
            br#"{"send": {"to": []}}"#,
            br#"{"send": {"to": ["x"]}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "name": "../x"}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "spread": "far"}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "mtu": 7}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "rate": 0}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "records": {"stream": "xyz"}}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "blocks": 1}}"#,
            br#"{"receive": {"from": ["nobody"]}}"#,
            br#"{"receive": {"records": 7}}"#,
            br#"{"receive": {"blocks": 1}}"#,
            br#"{"receive": {"key": "text"}}"#,
            b"\xff\xfe",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let send = SendRequest {
            to: vec!["10.0.0.3:6722".parse().unwrap()],
            name: "x".into(),
            spread: Some(Spread::Labels),
            rate: Some(Rate(7)),
            mtu: Some(1500),
            records: Some(Records { stream: u128::MAX / 3, length: 9, content: 8 }),
            blocks: true,
            key: Some(KeyProof::new(b"secret", 5)),
        };
        let line = send.line().to_string();
        assert_eq!(parse(line.as_bytes()), Ok(Request::Send(Box::new(send))));
        let from = vec!["10.0.0.1".parse().unwrap()];
        for blocks in [true, false] {
            let (from, key) = (from.clone(), Some(KeyProof::new(b"other", 6)));
            let receive = ReceiveRequest { records: true, blocks, from, key };
            let line = receive.line().to_string();
            assert_eq!(parse(line.as_bytes()), Ok(Request::Receive(receive)));
        }
    }
}
