//! The keys of `[workload]`, and the workload keys of `[[background]]`.

use std::num::NonZeroU16;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rackweave_core::{Bytes, HostId, Rate, Span};
use rackweave_workload::{
    Exchange, Generator, Interpolation, LoadCounts, Pattern, SizeDist, StreamMode, Streaming,
    Trace, WorkloadConfig, WorkloadError,
};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::application::{ApplicationKeys, Response, StreamName};
use super::collective::CollectiveKeys;
use super::file::read_named;
use super::problem::Problem;
use super::values::{Share, Unit};
use crate::error::nearest;

/// The table `[workload]` of messages.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// `"poisson"`, `"closed-loop"`, `"periodic"`, `"incast"`, `"permutation"`, `"all-to-all"` or
    /// `"trace"`. Required, except with a collective.
    #[serde(skip_serializing_if = "Option::is_none")]
    arrivals: Option<Arrivals>,
    /// Table, instead of `arrivals`: a collective operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<CollectiveKeys>,
    /// A distribution (`rackweave list workloads`), one size (`"100 KB"`), a CSV file with the
    /// columns `size_bytes` and `cdf`, or a table. Default: required, except for trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    sizes: Option<Sizes>,
    /// Longer messages get this size. Not for trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncate: Option<Unit<Bytes>>,
    /// CSV file: sizes between two lines are equally probable, or do not occur. Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    interpolate: Option<bool>,
    /// poisson, incast: share of each sender's link, at most 1, requests and responses together; of an incast that then recurs, of a
    /// receiver's link. Default: poisson: required.
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<Share>,
    /// poisson: `load` counts `"payload"`, or `"wire"`: with headers, gaps, and Homa's and
    /// pFabric's control packets. Default: `"payload"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    load_counts: Option<Counts>,
    /// periodic: rate of each sender's message bytes, from a random start. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate: Option<Unit<Rate>>,
    /// `"one-way"`. `"rpc"`: with a response, which latency includes. `"stream"`: so on streams.
    /// Default: `"one-way"`.
    #[serde(default)]
    exchange: ExchangeName,
    /// rpc, stream: size of responses; stream: also `"none"`. Default: that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<Response>,
    /// stream: `"one-id"`: an open RPC of the transport, whose messages are spans of bytes that are
    /// processed as they arrive. `"unary"`: numbered RPCs, which any transport has. Default:
    /// `"one-id"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<StreamName>,
    /// stream: streams from a client to a server. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    streams_per_pair: Option<NonZeroU16>,
    /// A number of hosts, or which: `"0-15"`. An incast may have more senders than there are hosts.
    /// No receivers for trace, nor for an incast to one. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    senders: Option<Hosts>,
    /// A number of hosts, or which: `"0-15"`. An incast may have more senders than there are hosts.
    /// No receivers for trace, nor for an incast to one. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    receivers: Option<Hosts>,
    /// incast: the host that all send to; if it recurs also `"any"`. Default: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    receiver: Option<Receiver>,
    /// closed-loop: outstanding messages per sender. Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    outstanding: Option<u32>,
    /// closed-loop: time from a message's end to the next start; time over which first messages
    /// start, evenly spaced, within `measure.warmup`. Default: `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    think: Option<Unit<Span>>,
    /// closed-loop: time from a message's end to the next start; time over which first messages
    /// start, evenly spaced, within `measure.warmup`. Default: `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    ramp: Option<Unit<Span>>,
    /// incast, permutation, all-to-all: messages per sender (and peer). Default: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    messages_per_sender: Option<u64>,
    /// incast: interval of recurrence, from `start` on; `senders` are drawn at random each time. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    every: Option<Unit<Span>>,
    /// incast: largest delay of a sender, uniform. Default: `"0 s"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<Unit<Span>>,
    /// trace: a CSV file with the columns `time_us` (`_ns`, `_ms`, ...), `source`, `destination`,
    /// `bytes`. Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Messages start between these times. Default: `"0 s"`; never.
    #[serde(default = "at_once")]
    start: Unit<Span>,
    /// Messages start between these times. Default: `"0 s"`; never.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<Unit<Span>>,
    /// Table: what receiving costs a host's thread, which processes a stream's messages in order.
    #[serde(default, skip_serializing_if = "ApplicationKeys::is_default")]
    application: ApplicationKeys,
}

const fn at_once() -> Unit<Span> {
    Unit(Span::ZERO)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Arrivals {
    Poisson,
    ClosedLoop,
    Periodic,
    Incast,
    Permutation,
    AllToAll,
    Trace,
    /// That of the table `collective`; no value of the key.
    #[serde(skip)]
    Collective,
}

impl Arrivals {
    const fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::ClosedLoop => "closed-loop",
            Self::Periodic => "periodic",
            Self::Incast => "incast",
            Self::Permutation => "permutation",
            Self::AllToAll => "all-to-all",
            Self::Trace => "trace",
            Self::Collective => "collective",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Counts {
    Payload,
    Wire,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
enum ExchangeName {
    #[default]
    OneWay,
    Rpc,
    Stream,
}

/// A published distribution, one size, a file, or a range.
#[derive(Clone, Debug, PartialEq)]
enum Sizes {
    Named(String),
    Uniform(Unit<Bytes>, Unit<Bytes>),
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct UniformTable {
    /// Least and largest size: `sizes = { uniform = ["1 KB", "10 KB"] }`. Required.
    uniform: (Unit<Bytes>, Unit<Bytes>),
}

impl<'de> Deserialize<'de> for Sizes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Sizes;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    "message sizes such as \"W4\", \"100 KB\", \"sizes.csv\" or \
                     { uniform = [\"1 KB\", \"10 KB\"] }",
                )
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Sizes, E> {
                Ok(Sizes::Named(text.to_owned()))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Sizes, A::Error> {
                let table =
                    UniformTable::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(Sizes::Uniform(table.uniform.0, table.uniform.1))
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Named(name) => to.serialize_str(name),
            Self::Uniform(low, high) => UniformTable { uniform: (*low, *high) }.serialize(to),
        }
    }
}

/// The receiver of an incast: a host, or `"any"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiver {
    Host(u32),
    Any,
}

impl<'de> Deserialize<'de> for Receiver {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Receiver;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("the number of a host, or \"any\"")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Receiver, E> {
                let host = u32::try_from(n);
                host.map(Receiver::Host)
                    .map_err(|_| E::custom(format_args!("there is no host {n}")))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Receiver, E> {
                if text == "any" {
                    return Ok(Receiver::Any);
                }
                Err(E::custom(format_args!("{text:?} is neither the number of a host nor \"any\"")))
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Receiver {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Host(number) => to.serialize_u32(*number),
            Self::Any => to.serialize_str("any"),
        }
    }
}

/// A number of hosts, or a range of hosts: "0-15".
#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Number(u32),
    Range(Range<u32>),
}

impl<'de> Deserialize<'de> for Hosts {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Hosts;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of hosts, or which they are as in \"0-15\"")
            }
            fn visit_u64<E: Error>(self, n: u64) -> Result<Hosts, E> {
                let number = u32::try_from(n)
                    .map_err(|_| E::custom(format_args!("there is no host {n}")))?;
                Ok(Hosts::Number(number))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Hosts, E> {
                let range = text.split_once('-').and_then(|(first, last)| {
                    let first: u32 = first.trim().parse().ok()?;
                    Some(first..last.trim().parse::<u32>().ok()?.checked_add(1)?)
                });
                range.map(Hosts::Range).ok_or_else(|| {
                    E::custom(format_args!("{text:?} is no range of hosts, as in \"0-15\""))
                })
            }
        }
        from.deserialize_any(Visitor)
    }
}

impl Serialize for Hosts {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(n) => to.serialize_u32(*n),
            Self::Range(range) => to.serialize_str(&format!("{}-{}", range.start, range.end - 1)),
        }
    }
}

/// The context that determines the meaning of a workload.
pub struct Context<'a> {
    /// The directory of the files that the workload names.
    pub folder: &'a Path,
    /// The hosts of the fabric.
    pub hosts: u64,
    /// The rate of their links.
    pub host_link: Rate,
    /// The hosts below each switch that has some; empty of a pod, whose racks may change.
    pub racks: &'a [Range<u32>],
}

impl Workload {
    /// Returns whether the workload goes on until it is stopped.
    pub const fn is_endless(&self) -> bool {
        matches!(self.arrivals, Some(Arrivals::Poisson | Arrivals::ClosedLoop | Arrivals::Periodic))
            || self.is_recurring()
    }

    /// Returns whether incasts recur.
    const fn is_recurring(&self) -> bool {
        matches!(self.arrivals, Some(Arrivals::Incast))
            && (self.every.is_some() || self.load.is_some())
    }

    /// Checks the keys against each other, and that the workload can be run.
    pub fn resolve(&self, path: &str, context: &Context<'_>) -> Result<WorkloadConfig, Problem> {
        let place = Place(path);
        let arrivals = self.arrivals(place)?;
        self.refuse_foreign_keys(place, arrivals)?;
        let config = WorkloadConfig {
            pattern: self.pattern(place, arrivals, context)?,
            exchange: self.exchange(place)?,
            streaming: self.streaming(place)?,
            application: self.application.resolve(path)?,
            start: self.start.0,
            stop: self.stop.map_or(Span::MAX, |stop| stop.0),
            senders: match &self.senders {
                Some(Hosts::Range(range)) => Some(range.clone()),
                Some(Hosts::Number(n)) if arrivals != Arrivals::Incast => Some(0..*n),
                _ => None,
            },
            receivers: match &self.receivers {
                Some(Hosts::Range(range)) => Some(range.clone()),
                Some(Hosts::Number(n)) => Some(0..*n),
                None => None,
            },
        };
        let hosts = u32::try_from(context.hosts).unwrap_or(u32::MAX);
        // Any gap serves, because only the other parameters are checked.
        Generator::new(&config, hosts, Some(Span::from_us(1)), 0, 0, 0).map_err(|error| match (
            &error, &self.file,
        ) {
            (WorkloadError::Trace(_), Some(file)) => {
                Problem::new(place.of(&error), format!("`{}`: {error}", file.display()))
            }
            _ => Problem::new(place.of(&error), error.to_string()),
        })?;
        Ok(config)
    }

    /// Returns the arrivals: a collective has a table in place of the key.
    fn arrivals(&self, place: Place<'_>) -> Result<Arrivals, Problem> {
        match (self.arrivals, &self.collective) {
            (Some(arrivals), None) => Ok(arrivals),
            (None, Some(_)) => Ok(Arrivals::Collective),
            (Some(_), Some(_)) => {
                let message = "a collective starts its messages itself: it has no `arrivals`";
                Err(Problem::new(place.key("arrivals"), message))
            }
            (None, None) => Err(place.missing("arrivals", "such as \"poisson\"")),
        }
    }

    fn refuse_foreign_keys(&self, place: Place<'_>, arrivals: Arrivals) -> Result<(), Problem> {
        use Arrivals::{
            AllToAll, ClosedLoop, Collective, Incast, Periodic, Permutation, Poisson, Trace,
        };
        const ALL_BUT_TRACE: &[Arrivals] =
            &[Poisson, ClosedLoop, Periodic, Incast, Permutation, AllToAll];
        let given: [(&str, bool, &[Arrivals]); 17] = [
            ("collective", self.collective.is_some(), &[Collective]),
            ("sizes", self.sizes.is_some(), ALL_BUT_TRACE),
            ("truncate", self.truncate.is_some(), ALL_BUT_TRACE),
            ("interpolate", self.interpolate.is_some(), ALL_BUT_TRACE),
            ("load", self.load.is_some(), &[Poisson, Incast]),
            ("load_counts", self.load_counts.is_some(), &[Poisson]),
            ("rate", self.rate.is_some(), &[Periodic]),
            ("senders", self.senders.is_some(), ALL_BUT_TRACE),
            (
                "receivers",
                self.receivers.is_some(),
                &[Poisson, ClosedLoop, Periodic, Incast, Permutation, AllToAll],
            ),
            ("receiver", self.receiver.is_some(), &[Incast]),
            ("outstanding", self.outstanding.is_some(), &[ClosedLoop]),
            ("think", self.think.is_some(), &[ClosedLoop]),
            ("ramp", self.ramp.is_some(), &[ClosedLoop]),
            (
                "messages_per_sender",
                self.messages_per_sender.is_some(),
                &[Incast, Permutation, AllToAll],
            ),
            ("every", self.every.is_some(), &[Incast]),
            ("spread", self.spread.is_some(), &[Incast]),
            ("file", self.file.is_some(), &[Trace]),
        ];
        for (key, is_given, belongs) in given {
            if is_given && !belongs.contains(&arrivals) {
                let own = given.iter().filter(|(.., belongs)| belongs.contains(&arrivals));
                let own: Vec<&str> = own.map(|(key, ..)| *key).collect();
                let message = format!("`{key}` has no meaning for {} arrivals", arrivals.name());
                return Err(Problem::new(place.key(key), message)
                    .with_help(format!("their keys are {}", own.join(", "))));
            }
        }
        Ok(())
    }

    fn pattern(
        &self,
        place: Place<'_>,
        arrivals: Arrivals,
        context: &Context<'_>,
    ) -> Result<Pattern, Problem> {
        let count = self.messages_per_sender.unwrap_or(1);
        Ok(match arrivals {
            Arrivals::Poisson => Pattern::OpenLoop {
                sizes: self.size_dist(place, context)?,
                load: self.load.ok_or_else(|| place.missing("load", "such as 0.8"))?.0,
                counts: match self.load_counts {
                    None | Some(Counts::Payload) => LoadCounts::Payload,
                    Some(Counts::Wire) => LoadCounts::Wire,
                },
            },
            Arrivals::ClosedLoop => Pattern::ClosedLoop {
                sizes: self.size_dist(place, context)?,
                outstanding: self.outstanding.unwrap_or(1),
                think: self.think.map_or(Span::ZERO, |think| think.0),
                ramp: self.ramp.map_or(Span::ZERO, |ramp| ramp.0),
            },
            Arrivals::Periodic => {
                let Unit(rate) =
                    self.rate.ok_or_else(|| place.missing("rate", "such as \"200 Mbps\""))?;
                if rate > context.host_link {
                    let message = format!("a link of {} can't carry {rate}", context.host_link);
                    return Err(Problem::new(place.key("rate"), message));
                }
                Pattern::Periodic { sizes: self.size_dist(place, context)?, rate }
            }
            Arrivals::Incast if self.is_recurring() => self.recurring_incast(place, context)?,
            Arrivals::Incast => Pattern::Incast {
                senders: match &self.senders {
                    Some(Hosts::Number(n)) => Some(*n),
                    Some(Hosts::Range(_)) | None => None,
                },
                receiver: self.receiver(place)?.ok_or_else(|| {
                    let message = "a single incast has one receiver, which must be named";
                    Problem::new(place.key("receiver"), message).with_help(
                        "incasts that recur can have another one each time: with `every` or `load`",
                    )
                })?,
                sizes: self.size_dist(place, context)?,
                messages_per_sender: count,
                at: Span::ZERO,
                spread: self.spread.map_or(Span::ZERO, |spread| spread.0),
            },
            Arrivals::Permutation => Pattern::Permutation {
                sizes: self.size_dist(place, context)?,
                messages_per_host: count,
            },
            Arrivals::AllToAll => Pattern::AllToAll {
                sizes: self.size_dist(place, context)?,
                messages_per_pair: count,
            },
            Arrivals::Trace => {
                let file = self.file.as_ref();
                let file = file.ok_or_else(|| place.missing("file", "such as \"trace.csv\""))?;
                let bytes = read(&place.key("file"), &context.folder.join(file), MAX_TABLE_BYTES)?;
                let trace = Trace::from_csv(bytes).map_err(|error| {
                    Problem::new(place.key("file"), format!("`{}`: {error}", file.display()))
                })?;
                Pattern::Trace(trace)
            }
            Arrivals::Collective => {
                if self.stop.is_some() {
                    let message = "a collective ends when all ranks have done their part";
                    return Err(Problem::new(place.key("stop"), message));
                }
                let keys = self.collective.as_ref();
                let keys = keys.ok_or_else(|| place.missing("collective", "a table"))?;
                Pattern::Collective(keys.resolve(&place.key("collective"), context)?)
            }
        })
    }

    /// Returns the receiver of an incast; `None` for any.
    fn receiver(&self, place: Place<'_>) -> Result<Option<HostId>, Problem> {
        match (self.receiver, &self.receivers) {
            (Some(Receiver::Any), _) => Ok(None),
            (_, Some(_)) => {
                let message = "`receivers` has no meaning for an incast to one host";
                Err(Problem::new(place.key("receivers"), message).with_help("receiver = \"any\""))
            }
            (receiver, None) => Ok(Some(match receiver {
                Some(Receiver::Host(number)) => HostId(number),
                _ => HostId(0),
            })),
        }
    }

    /// Returns incasts every so often, or as a share of the load of their receivers' links.
    fn recurring_incast(
        &self,
        place: Place<'_>,
        context: &Context<'_>,
    ) -> Result<Pattern, Problem> {
        if self.spread.is_some() {
            let message = "`spread` has no meaning for incasts that recur";
            return Err(Problem::new(place.key("spread"), message));
        }
        let (sizes, receiver) = (self.size_dist(place, context)?, self.receiver(place)?);
        let messages_per_sender = self.messages_per_sender.unwrap_or(1);
        let number = |hosts: &Option<Hosts>| match hosts {
            Some(Hosts::Range(range)) => u64::from(range.end.saturating_sub(range.start)),
            Some(Hosts::Number(n)) => u64::from(*n),
            None => context.hosts,
        };
        let senders = match &self.senders {
            Some(Hosts::Number(n)) => Some(*n),
            Some(Hosts::Range(_)) | None => None,
        };
        let every = match (self.every, self.load) {
            (Some(_), Some(_)) => {
                let message = "incasts recur either `every` so often or as a share of the `load`";
                return Err(Problem::new(place.key("every"), message));
            }
            (Some(every), None) => every.0,
            (None, load) => {
                let load = load.map_or(1.0, |load| load.0);
                let of_all = match &self.senders {
                    Some(Hosts::Number(n)) => u64::from(*n),
                    // One of them receives.
                    all => number(all).saturating_sub(1).max(1),
                };
                let bytes = of_all as f64 * messages_per_sender as f64 * sizes.mean();
                let receivers = receiver.map_or_else(|| number(&self.receivers), |_| 1) as f64;
                if load <= 0.0 {
                    return Err(Problem::new(place.key("load"), "`load` must be above 0"));
                }
                let rate = load * receivers * context.host_link.0 as f64;
                Span::from_secs_f64(bytes * 8.0 / rate).max(Span::TICK)
            }
        };
        Ok(Pattern::RecurringIncast { senders, receiver, sizes, messages_per_sender, every })
    }

    fn exchange(&self, place: Place<'_>) -> Result<Exchange, Problem> {
        match (self.exchange, self.response) {
            (ExchangeName::OneWay, None) => Ok(Exchange::OneWay),
            (ExchangeName::OneWay, Some(_)) => {
                let message = "one-way messages have no `response`";
                Err(Problem::new(place.key("response"), message)
                    .with_help("requests and responses are exchange = \"rpc\""))
            }
            (ExchangeName::Rpc | ExchangeName::Stream, None) => Ok(Exchange::Echo),
            (ExchangeName::Rpc, Some(Response::None)) => {
                Err(Problem::new(place.key("response"), "requests have a response")
                    .with_help("messages without are exchange = \"one-way\" or \"stream\""))
            }
            (_, Some(Response::Bytes(Unit(Bytes(0))))) => {
                Err(Problem::new(place.key("response"), "a response has at least 1 byte"))
            }
            (ExchangeName::Rpc | ExchangeName::Stream, Some(response)) => Ok(response.into()),
        }
    }

    fn streaming(&self, place: Place<'_>) -> Result<Option<Streaming>, Problem> {
        if self.exchange == ExchangeName::Stream {
            let mode = self.stream.map_or(StreamMode::OneId, StreamMode::from);
            let per_pair = self.streams_per_pair.unwrap_or(NonZeroU16::MIN);
            return Ok(Some(Streaming { mode, per_pair }));
        }
        let given = [
            ("stream", self.stream.is_some()),
            ("streams_per_pair", self.streams_per_pair.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(None),
            Some((key, _)) => Err(Problem::new(
                place.key(key),
                format!("`{key}` has no meaning for messages that are not on streams"),
            )
            .with_help("those on streams are exchange = \"stream\"")),
        }
    }

    fn size_dist(&self, place: Place<'_>, context: &Context<'_>) -> Result<SizeDist, Problem> {
        let key = place.key("sizes");
        let bad = |error: String| Problem::new(key.clone(), error);
        let sizes = match &self.sizes {
            None => return Err(place.missing("sizes", "such as \"W4\" or \"100 KB\"")),
            Some(Sizes::Uniform(low, high)) => {
                SizeDist::uniform(low.0.0, high.0.0).map_err(|error| bad(error.to_string()))?
            }
            Some(Sizes::Named(name)) => self.named_sizes(&key, name, context)?,
        };
        match self.truncate {
            None => Ok(sizes),
            Some(Unit(Bytes(max))) => sizes
                .truncated(max)
                .map_err(|error| Problem::new(place.key("truncate"), error.to_string())),
        }
    }

    fn named_sizes(
        &self,
        key: &str,
        name: &str,
        context: &Context<'_>,
    ) -> Result<SizeDist, Problem> {
        let is_file = Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"));
        if is_file {
            let bytes = read(key, &context.folder.join(name), MAX_TABLE_BYTES)?;
            let interpolation = match self.interpolate {
                Some(false) => Interpolation::Steps,
                _ => Interpolation::Linear,
            };
            return SizeDist::from_csv(bytes, interpolation)
                .map(|sizes| sizes.with_name(name))
                .map_err(|error| Problem::new(key, format!("`{name}`: {error}")));
        }
        if let Ok(Bytes(bytes)) = name.parse() {
            return SizeDist::fixed(bytes).map_err(|error| Problem::new(key, error.to_string()));
        }
        SizeDist::named(name).map_err(|error| {
            let starts_with_digit = name.trim_start().starts_with(|c: char| c.is_ascii_digit());
            match name.parse::<Bytes>() {
                Err(unit) if starts_with_digit => Problem::new(key, unit.to_string()),
                _ => Problem::new(key, error.to_string()).with_help(
                    match nearest(name, SizeDist::NAMES) {
                        Some(near) => format!("did you mean \"{near}\"?"),
                        None => "a fixed size is written as \"100 KB\", a file ends in .csv".into(),
                    },
                ),
            }
        })
    }

    /// Makes paths absolute, because a resolved scenario is in another directory than the files that it names.
    pub fn make_paths_absolute(&mut self, folder: &Path) {
        let absolute = |path: &Path| {
            let joined = folder.join(path);
            std::path::absolute(&joined).unwrap_or(joined)
        };
        if let Some(file) = &mut self.file {
            *file = absolute(file);
        }
        if let Some(collective) = &mut self.collective {
            collective.make_path_absolute(absolute);
        }
        if let Some(Sizes::Named(name)) = &mut self.sizes
            && Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("csv"))
        {
            *name = absolute(Path::new(name)).to_string_lossy().into_owned();
        }
    }
}

/// Refuses a ramp that lasts into the measured time: its messages would be measured at a lower load.
pub fn check_ramp(workload: &WorkloadConfig, warmup: Span) -> Result<(), Problem> {
    match workload.pattern {
        Pattern::ClosedLoop { ramp, .. }
            if ramp > Span::ZERO && workload.start.saturating_add(ramp) > warmup =>
        {
            let end = workload.start.saturating_add(ramp);
            let message = format!("the ramp ends at {end}, after the warm-up of {warmup}");
            Err(Problem::new("workload.ramp", message).with_help(
                "messages would be measured before all are outstanding: lengthen `measure.warmup`",
            ))
        }
        _ => Ok(()),
    }
}

/// The size limit of a trace or of a table of sizes: all of it is in memory.
const MAX_TABLE_BYTES: u64 = 1 << 30;

pub(crate) fn read(key: &str, path: &Path, most: u64) -> Result<Vec<u8>, Problem> {
    let shown = path.display();
    match read_named(path, most) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(Problem::new(key, format!("`{shown}` has more than {most} bytes"))),
        Err(error) => Err(Problem::new(key, format!("cannot read `{shown}`: {error}"))),
    }
}

/// The path of a workload's table.
#[derive(Clone, Copy)]
struct Place<'a>(&'a str);

impl Place<'_> {
    fn key(self, key: &str) -> String {
        format!("{}.{key}", self.0)
    }

    fn missing(self, key: &str, example: &str) -> Problem {
        Problem::new(self.0, format!("`{key}` is missing: {example}"))
    }

    /// Returns the key that an error of the generator is about.
    fn of(self, error: &WorkloadError) -> String {
        use WorkloadError as E;
        match error {
            E::Load(_) | E::NoRate | E::NoGap => self.key("load"),
            E::NoConstantRate => self.key("rate"),
            E::NoOutstanding => self.key("outstanding"),
            E::Zero { .. } | E::TooMany { .. } => self.key("messages_per_sender"),
            E::EmptyRange { what, .. } | E::NotApplicable { what, .. } => self.key(what),
            E::NoSuchHost { what: "the receiver", .. } => self.key("receiver"),
            E::NoSuchHost { what: "a rank", .. } => self.key("collective.ranks"),
            E::NoSuchHost { what, .. } => self.key(what),
            E::NoSender(_) => self.key("senders"),
            E::NoPeriod => self.key("every"),
            E::StopsBeforeStart { .. } => self.key("stop"),
            E::Trace(_) => self.key("file"),
            E::UnknownDistribution(_) | E::Sizes(_) => self.key("sizes"),
            E::UnequalRanks { .. } | E::TwoRanks { .. } => self.key("collective.ranks"),
            E::Answered => self.key("exchange"),
            E::NoHosts | E::NoDestination(_) | E::UnequalPermutation { .. } => self.key("senders"),
        }
    }
}
