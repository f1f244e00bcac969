//! The keys of dcPIM.

use rackweave_core::{Framing, Span, frame};
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, dcpim};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{Thousandths, Unit, Whole};

keys! {
    /// dcPIM's keys. A missing key has the value of the profile.
    struct DcPimKeys for dcpim::Config {
        /// `"paper"`: the authors' simulations, for the fabric's round trips. `"hosts"`: rounds of
        /// at least 500 us, and 1 ms for tokens and late packets. Default: `"paper"`.
        profile: Profile,
        /// r and k: rounds per matching, and channels per host link. Default: 4.
        rounds: Whole<1, 100, u8>,
        /// r and k: rounds per matching, and channels per host link. Default: 4.
        channels: Whole<1, 100, u8>,
        /// Length of a round, in smallest round trips or as a time. Default: 1.3 round trips.
        beta: Thousandths<1000>,
        /// Length of a round, in smallest round trips or as a time. Default: 1.3 round trips.
        round: Unit<Span>,
        /// Length of an epoch in matchings, at least 1. Default: 1.
        alpha: Thousandths<1000>,
        /// First rounds, which choose the shortest messages; others choose at random. Default: 1.
        srpt_rounds: u8 => srpt_rounds,
        /// Idle channels are used as soon as they are matched. Default: true.
        prompt: bool => prompt,
        /// Packets: longer messages wait for tokens; most unused tokens of a message on all
        /// channels. Default: the bandwidth-delay product.
        free_packets: u16 => free_packets,
        /// Packets: longer messages wait for tokens; most unused tokens of a message on all
        /// channels. Default: the bandwidth-delay product.
        token_window: Whole<1, { u32::MAX }, u32>,
        /// Time after its last token until a message wants tokens for missing packets; late data
        /// adds twice the mean excess. Default: the bandwidth-delay product's time.
        resend_after: Unit<Span> => resend_after,
        /// Range of the hosts' starts of epochs. Default: `"0 s"`.
        clock_skew: Unit<Span> => clock_skew,
        /// Priorities of data, by length of the message: up to 7 packets, up to 49, and so on.
        /// Default: 6.
        data_levels: u8 => data_levels,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// The values of the authors' simulations, for this fabric's round trips.
    #[default]
    Paper,
    /// Like `paper`, with rounds and timeouts for processes on hosts.
    Hosts,
}

/// The parameters of the authors' simulations for a fabric.
fn for_fabric(fabric: &Fabric) -> dcpim::Config {
    let full = Framing { max_payload: frame::MTU, header_bytes: 0, spray_above_bytes: u32::MAX };
    // docs/protocols/dcpim.md#dcpim-parameters: the product is that of full packets in both directions.
    let rtt = fabric.base_rtt(full, frame::wire_bytes(frame::MTU));
    let smallest = Framing { max_payload: 1, header_bytes: 0, ..full };
    let control_rtt = fabric.base_rtt(smallest, frame::wire_bytes(0));
    dcpim::Config::paper(fabric.host_rate(), rtt, control_rtt)
}

impl DcPimKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<dcpim::Config>] = &[
        Rule {
            key: "round",
            of: |config| Some(Amount::Time(config.round)),
            why: "1.3 idle round trips of a control packet (beta, SIGCOMM 2022), at least a packet on each channel",
            far: Far::TIMER,
            grid: Grid::Factors(&[0.77, 0.9, 1.15, 1.5]),
        },
        Rule {
            key: "rounds",
            of: |config| Some(Amount::Number(f64::from(config.rounds))),
            why: "r of the paper",
            far: Far::NEVER,
            grid: Grid::Values(&["1", "2", "3", "5"]),
        },
        Rule {
            key: "channels",
            of: |config| Some(Amount::Number(f64::from(config.channels))),
            why: "k of the paper",
            far: Far::NEVER,
            grid: Grid::Values(&["1", "2", "8"]),
        },
        Rule {
            key: "free_packets",
            of: |config| Some(Amount::Packets(u64::from(config.free_packets))),
            why: "a bandwidth-delay product (SIGCOMM 2022)",
            far: Far::WINDOW,
            grid: Grid::Factors(&[2.0, 4.0]),
        },
        Rule {
            key: "token_window",
            of: |config| Some(Amount::Packets(u64::from(config.token_window))),
            why: "a bandwidth-delay product (the authors' simulator)",
            far: Far::WINDOW,
            grid: Grid::None,
        },
        Rule {
            key: "resend_after",
            of: |config| Some(Amount::Time(config.resend_after)),
            why: "a bandwidth-delay product's time (the authors' simulator)",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<dcpim::Config, Problem> {
        let link = fabric.host_rate();
        let mut config = for_fabric(fabric);
        if self.profile.unwrap_or_default() == Profile::Hosts {
            config = config.for_hosts(link);
        }
        if let (Some(_), Some(_)) = (self.beta, self.round) {
            let message = "`round` is the length that `beta` is a multiple for: give one of them";
            return Err(place.bad("round", message));
        }
        let beta = self.beta.map(|beta| {
            // In the profile a round is `Config::BETA` thousandths of the round trip.
            let thousandths = u64::from(u32::from(beta));
            let round = config.round.ticks().saturating_mul(thousandths);
            Span::from_ticks(round / u64::from(dcpim::Config::BETA))
        });
        let round = self.round.map(|round| round.0).or(beta).unwrap_or(config.round);
        if let Some(channels) = self.channels {
            config = config.with_channels(link, channels.0);
        }
        let rounds = self.rounds.map_or(config.rounds, |rounds| rounds.0);
        config = config.with_rounds(link, rounds, round);
        if let Some(alpha) = self.alpha {
            let epoch = config.epoch.ticks().saturating_mul(u64::from(u32::from(alpha)));
            config.epoch = Span::from_ticks(epoch / 1000);
        }
        self.apply(&mut config);
        if let Some(window) = self.token_window {
            config.token_window = window.0;
        }
        config.check().map_err(|error| self.invalid(place, error))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Rule { field: "data_levels", .. } => place.bad("data_levels", error.to_string()),
            E::Rule { field: "epoch", .. } => {
                place.bad("alpha", "`alpha` must be at least 1: a matching takes as long")
            }
            E::Rule { field: "token_slack", .. } => {
                let key = match self.round {
                    Some(_) => "round",
                    None if self.alpha.is_some() => "alpha",
                    None => "rounds",
                };
                place.bad(key, error.to_string())
            }
            E::Rule { field: "channels", .. } => place.bad("channels", error.to_string()),
            _ => place.invalid(&error),
        }
    }
}
