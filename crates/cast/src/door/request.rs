//! What the first line of a connection asks for.

use std::net::{IpAddr, SocketAddr};

use rackweave_core::Rate;
use rackweave_group::orca::host::Spread;
use serde_json::{Map, Value, json};

use crate::format::check_path;

/// What an application wants to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendWish {
    /// To whom.
    pub to: Vec<SocketAddr>,
    /// What receivers call it; of no meaning with `records`.
    pub name: String,
    /// How; else the agent chooses.
    pub spread: Option<Spread>,
    /// Never faster.
    pub rate: Option<Rate>,
    /// The largest IP packet.
    pub mtu: Option<u32>,
    /// The bytes are not one file's but a whole stream's.
    pub records: Option<Records>,
    /// [`fingerprint`] of the key that it is to be sent with.
    pub key: Option<String>,
}

/// A stream as `cast send` makes it, of files with names and hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Names its content.
    pub stream: u128,
    /// Its bytes: fewer are not all.
    pub length: u64,
    /// Bytes of files in it.
    pub content: u64,
}

/// What an application wants to receive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveWish {
    /// Whole streams, as [`take`](super::stream::take) takes them, not the bytes of one file.
    pub records: bool,
    /// From these hosts only; none: from all that the agent listens to.
    pub from: Vec<IpAddr>,
    /// [`fingerprint`] of the key that streams are to be made with.
    pub key: Option<String>,
}

/// What a first line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Send(Box<SendWish>),
    Receive(ReceiveWish),
    Sessions,
}

/// By this both ends of a door know whether they have the same key, without showing it.
#[must_use]
pub fn fingerprint(secret: &[u8]) -> String {
    let hash = blake3::derive_key("rackweave 2026 cast door", secret);
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

const SPREADS: [(&str, Spread); 4] = [
    ("labels", Spread::Labels),
    ("relay", Spread::Relay),
    ("multicast", Spread::Multicast),
    ("unicast", Spread::Unicast),
];

impl SendWish {
    /// The first line.
    #[must_use]
    pub fn line(&self) -> Value {
        let to: Vec<_> = self.to.iter().map(ToString::to_string).collect();
        let mut send = json!({ "to": to, "name": self.name });
        let spread = self.spread.and_then(|it| SPREADS.iter().find(|(_, known)| *known == it));
        let records = self.records.map(|records| {
            let stream = format!("{:032x}", records.stream);
            json!({ "stream": stream, "length": records.length, "content": records.content })
        });
        let more = [
            ("spread", spread.map(|(name, _)| json!(name))),
            ("rate", self.rate.map(|rate| json!(rate.0))),
            ("mtu", self.mtu.map(|mtu| json!(mtu))),
            ("records", records),
            ("key", self.key.as_ref().map(|key| json!(key))),
        ];
        for (key, value) in more {
            if let Some(value) = value {
                send[key] = value;
            }
        }
        json!({ "send": send })
    }
}

impl ReceiveWish {
    /// The first line.
    #[must_use]
    pub fn line(&self) -> Value {
        let from: Vec<_> = self.from.iter().map(ToString::to_string).collect();
        let mut receive = json!({ "records": self.records, "from": from });
        if let Some(key) = &self.key {
            receive["key"] = json!(key);
        }
        json!({ "receive": receive })
    }
}

/// A key that need not be there, but is right if it is.
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

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

pub(super) fn parse(line: &[u8]) -> Result<Wanted, String> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| format!("the first line must be a JSON object: {error}"))?;
    let none = Map::new();
    if let Some(receive) = value.get("receive") {
        return parse_receive(receive.as_object().unwrap_or(&none)).map(Wanted::Receive);
    }
    if value.get("sessions").is_some() {
        return Ok(Wanted::Sessions);
    }
    let send =
        value.get("send").ok_or("the first line must have `send`, `receive` or `sessions`")?;
    parse_send(send.as_object().unwrap_or(&none)).map(|wish| Wanted::Send(Box::new(wish)))
}

fn parse_receive(receive: &Map<String, Value>) -> Result<ReceiveWish, String> {
    let addresses = |value: &Value| -> Option<Vec<IpAddr>> {
        value.as_array()?.iter().map(|value| value.as_str()?.parse().ok()).collect()
    };
    Ok(ReceiveWish {
        records: optional(receive, "records", "true or false", Value::as_bool)?.unwrap_or(false),
        from: optional(receive, "from", "a list of addresses", addresses)?.unwrap_or_default(),
        key: optional(receive, "key", "text", text)?,
    })
}

fn parse_send(send: &Map<String, Value>) -> Result<SendWish, String> {
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
    let spread = |value: &Value| {
        let name = value.as_str()?;
        SPREADS.iter().find(|(known, _)| *known == name).map(|(_, spread)| *spread)
    };
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
    Ok(SendWish {
        to,
        name: name.to_owned(),
        spread: optional(send, "spread", "labels, relay, multicast or unicast", spread)?,
        rate: optional(send, "rate", "bits per second", |value| value.as_u64().map(Rate))?,
        mtu: optional(send, "mtu", "from 256 to 65000", mtu)?,
        records: optional(send, "records", "a stream with its length and content", records)?,
        key: optional(send, "key", "text", text)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_understood_or_refused() {
        let good = br#"{"send": {"to": ["127.0.0.1:5", "[::1]:6"], "name": "a/b"}}"#;
        let Ok(Wanted::Send(wish)) = parse(good) else { panic!("{:?}", parse(good)) };
        assert_eq!((wish.to.len(), wish.name.as_str(), wish.spread), (2, "a/b", None));
        assert_eq!(parse(br#"{"receive": {}}"#), Ok(Wanted::Receive(ReceiveWish::default())));
        assert_eq!(parse(br#"{"sessions": {}}"#), Ok(Wanted::Sessions));
        for bad in [
            &b""[..],
            b"[]",
            br#"{"send": {"to": []}}"#,
            br#"{"send": {"to": ["x"]}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "name": "../x"}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "spread": "far"}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "mtu": 7}}"#,
            br#"{"send": {"to": ["127.0.0.1:5"], "records": {"stream": "xyz"}}}"#,
            br#"{"receive": {"from": ["nobody"]}}"#,
            br#"{"receive": {"records": 7}}"#,
            b"\xff\xfe",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let send = SendWish {
            to: vec!["10.0.0.3:6722".parse().unwrap()],
            name: "x".into(),
            spread: Some(Spread::Labels),
            rate: Some(Rate(7)),
            mtu: Some(1500),
            records: Some(Records { stream: u128::MAX / 3, length: 9, content: 8 }),
            key: Some(fingerprint(b"secret")),
        };
        let line = send.line().to_string();
        assert_eq!(parse(line.as_bytes()), Ok(Wanted::Send(Box::new(send))));
        let from = vec!["10.0.0.1".parse().unwrap()];
        let receive = ReceiveWish { records: true, from, key: Some(fingerprint(b"other")) };
        let line = receive.line().to_string();
        assert_eq!(parse(line.as_bytes()), Ok(Wanted::Receive(receive)));
        assert_ne!(fingerprint(b"secret"), fingerprint(b"other"));
    }
}
