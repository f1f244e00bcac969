//! The keys of TCP and DCTCP.

use rackweave_core::{Bytes, Span};
use rackweave_sim::Fabric;
use rackweave_transport::tcp;
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Choice as _, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AboveZero, AtLeast, AtMost, Priority, Unit};
use super::Name;
use crate::path::Path;

keys! {
    /// The keys of TCP and DCTCP.
    struct TcpKeys for tcp::Config {
        /// `"linux"`. `"classic"`: without `rack`, `prr`, `undo`, `hystart`, `quick_acks` and
        /// `idle_restart`. Default: `"linux"`.
        profile: Profile,
        /// tcp: `"cubic"`, `"newreno"`, or, with the kernel's TCP, `"bbr"`. Default: `"cubic"`.
        congestion: Congestion,
        /// cubic: slow start's end before a loss: `"linux"`, `"plus-plus"` (RFC 9406; from an RTT
        /// of 4 ms on) or `"off"`. Default: `"linux"`.
        hystart: HyStart,
        /// First congestion window, in segments. Default: 10, or a bandwidth-delay product.
        initial_window: AtLeast<1> => initial_window_segments,
        /// Retransmission timeout before the first measurement, shortest and longest. Default:
        /// `min_rto`; `"1 ms"`, or two round trips; `"100 ms"`.
        initial_rto: Unit<Span> => initial_rto,
        /// Retransmission timeout before the first measurement, shortest and longest. Default:
        /// `min_rto`; `"1 ms"`, or two round trips; `"100 ms"`.
        min_rto: AboveZero<Span> => min_rto,
        /// Retransmission timeout before the first measurement, shortest and longest. Default:
        /// `min_rto`; `"1 ms"`, or two round trips; `"100 ms"`.
        max_rto: Unit<Span> => max_rto,
        /// Segments, or time, after which an acknowledgement is sent. Default: 2; `"200 us"`.
        ack_every: AtLeast<1> => ack_every_segments,
        /// Segments, or time, after which an acknowledgement is sent. Default: 2; `"200 us"`.
        delayed_ack: Unit<Span> => delayed_ack,
        /// Immediate acknowledgements at first, and after `idle_restart`. Default: 16.
        quick_acks: AtLeast<0> => quick_acks,
        /// Receive window, in bytes. Default: `"4194304 B"`.
        receive_window: Unit<Bytes>,
        /// Most connections from a host to one peer. Default: 8.
        connections_per_peer: AtLeast<1> => connections_per_peer,
        /// Connections begin with SYN and SYN-ACK. Default: false; true for `cast-tcp` and
        /// `cast-chain`.
        handshake: bool => handshake,
        /// Selective acknowledgements; duplicate acknowledgements release new data (RFC 3042); a
        /// probe finds losses at the tail (RFC 8985); reductions in vain are undone (RFC 5682, RFC
        /// 3708). Default: true.
        sack: bool => sack,
        /// Selective acknowledgements; duplicate acknowledgements release new data (RFC 3042); a
        /// probe finds losses at the tail (RFC 8985); reductions in vain are undone (RFC 5682, RFC
        /// 3708). Default: true.
        limited_transmit: bool => limited_transmit,
        /// Selective acknowledgements; duplicate acknowledgements release new data (RFC 3042); a
        /// probe finds losses at the tail (RFC 8985); reductions in vain are undone (RFC 5682, RFC
        /// 3708). Default: true.
        tail_loss_probe: bool => tail_loss_probe,
        /// Losses, also of retransmissions, are found by time (RFC 8985), or by RFC 6675; then and
        /// after marks the window shrinks by what arrives (RFC 6937, RFC 9937), or at once.
        /// Default: true.
        rack: bool => rack,
        /// Losses, also of retransmissions, are found by time (RFC 8985), or by RFC 6675; then and
        /// after marks the window shrinks by what arrives (RFC 6937, RFC 9937), or at once.
        /// Default: true.
        prr: bool => prr,
        /// Selective acknowledgements; duplicate acknowledgements release new data (RFC 3042); a
        /// probe finds losses at the tail (RFC 8985); reductions in vain are undone (RFC 5682, RFC
        /// 3708). Default: true.
        undo: bool => undo,
        /// The window decays after this idle time, or a longer RTO. Default: true; `"200 ms"`.
        slow_start_after_idle: bool => slow_start_after_idle,
        /// The window decays after this idle time, or a longer RTO. Default: true; `"200 ms"`.
        idle_restart: Unit<Span> => idle_restart,
        /// tcp: classic ECN. Default: false.
        ecn: bool => ecn,
        /// dctcp: 4 means g = 1/16. Default: 4.
        dctcp_gain_shift: AtMost<10> => dctcp_gain_shift,
        /// Queue in switches, 0 to 7. Default: 0.
        priority: Priority => priority,
        /// Packets take any path. Default: false.
        spray: bool => spray,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Congestion {
    Newreno,
    Cubic,
    Dctcp,
    /// BBR, which only the kernel's TCP has.
    Bbr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    Linux,
    Classic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HyStart {
    Off,
    Linux,
    PlusPlus,
}

/// The largest receive window: 16 bits with a scale of 8 (RFC 7323, section 2.2).
const MAX_RECEIVE_WINDOW: u64 = 16_776_960;

impl TcpKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<tcp::Config>] = &[
        Rule {
            key: "initial_window",
            of: |config| Some(Amount::Packets(u64::from(config.initial_window_segments))),
            why: "10 segments (RFC 6928, Linux), or a bandwidth-delay product of the longest path (SIRD's study of DCTCP)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 2.0, 4.0]),
        },
        Rule {
            key: "min_rto",
            of: |config| Some(Amount::Time(config.min_rto)),
            why: "1 ms, what hosts' timers permit (Vasudevan et al., 2009), or two idle round trips",
            far: Far::TIMER,
            // 200 us: pFabric's and SIRD's studies of DCTCP.
            grid: Grid::Factors(&[0.2, 5.0]),
        },
        Rule {
            key: "dctcp_gain_shift",
            of: |config| {
                let is_dctcp = config.congestion_control == tcp::CongestionControl::Dctcp;
                is_dctcp.then(|| Amount::Number(f64::from(config.dctcp_gain_shift)))
            },
            why: "g = 1/16, as in the paper and in Linux",
            far: Far::NEVER,
            grid: Grid::Values(&["2", "3", "5"]),
        },
    ];

    /// Resolves the configuration of DCTCP or TCP, as `place` names it.
    pub(super) fn config(&self, place: Place<'_>) -> Result<tcp::Config, Problem> {
        let is_dctcp = place.name == Name::Dctcp.as_str();
        let mut config = if is_dctcp { tcp::Config::dctcp() } else { tcp::Config::tcp() };
        if let Some(congestion) = self.congestion {
            if is_dctcp != (congestion == Congestion::Dctcp) {
                let message = format!("this is no congestion control of {}", place.name);
                return Err(place
                    .bad("congestion", message)
                    .with_help("tcp has \"newreno\" and \"cubic\" (and, in the testbed, \"bbr\"); dctcp is a transport by name"));
            }
            config.congestion_control = match congestion {
                Congestion::Newreno => tcp::CongestionControl::NewReno,
                // BBR runs in the kernel, whose TCP replaces the one of this stream.
                Congestion::Cubic | Congestion::Bbr => tcp::CongestionControl::Cubic,
                Congestion::Dctcp => tcp::CongestionControl::Dctcp,
            };
        }
        if self.profile == Some(Profile::Classic) {
            config = config.classic();
        }
        if let Some(hystart) = self.hystart {
            config.hystart = match hystart {
                HyStart::Off => tcp::HyStart::Off,
                HyStart::Linux => tcp::HyStart::Linux,
                HyStart::PlusPlus => tcp::HyStart::PlusPlus,
            };
        }
        self.apply(&mut config);
        if self.initial_rto.is_none() {
            // Connections have been open for long, so their timeout starts at the minimum.
            config.initial_rto = config.initial_rto.max(config.min_rto);
        }
        if self.max_rto.is_none() {
            config.max_rto = config.max_rto.max(config.min_rto);
        }
        if config.max_rto < config.min_rto {
            return Err(place.bad("max_rto", "`max_rto` must not be below `min_rto`"));
        }
        if let Some(Unit(Bytes(bytes))) = self.receive_window {
            if !(u64::from(config.mss)..=MAX_RECEIVE_WINDOW).contains(&bytes) {
                let (least, most) = (config.mss, MAX_RECEIVE_WINDOW);
                let message = format!("`receive_window` must be from {least} B to {most} B");
                return Err(place.bad("receive_window", message));
            }
            config.receive_window = bytes as u32;
        }
        Ok(config)
    }

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        _carried: Carried<'_>,
    ) -> Result<tcp::Config, Problem> {
        let path = Path::longest(fabric);
        let mut config = self.config(place)?;
        if self.initial_window.is_none() {
            let product = u64::from(path.base_rtt_bytes()).div_ceil(config.mss.max(1).into());
            let segments =
                config.initial_window_segments.max(product.try_into().unwrap_or(u32::MAX));
            config.initial_window_segments = segments;
        }
        if self.min_rto.is_none() {
            let least = path.base_rtt() * 2;
            config.min_rto = config.min_rto.max(least);
            if self.initial_rto.is_none() {
                config.initial_rto = config.initial_rto.max(least);
            }
            if self.max_rto.is_none() {
                config.max_rto = config.max_rto.max(least);
            }
        }
        Ok(config)
    }

    /// Returns whether connections begin with a handshake; `None` if the scenario does not set it.
    pub(super) fn handshake(&self) -> Option<bool> {
        self.handshake
    }

    /// Returns whether classic ECN is on.
    pub(super) fn is_ecn_capable(&self) -> bool {
        self.ecn.unwrap_or_default()
    }

    /// Returns the kernel's name of the congestion control.
    pub(super) fn kernel_name(&self, is_dctcp: bool) -> &'static str {
        match self.congestion {
            _ if is_dctcp => "dctcp",
            Some(Congestion::Newreno) => "reno",
            Some(Congestion::Bbr) => "bbr",
            _ => "cubic",
        }
    }
}
