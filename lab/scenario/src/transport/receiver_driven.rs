//! The keys of NDP and pHost.

use rackweave_core::{Span, frame};
use rackweave_sim::Fabric;
use rackweave_transport::{InvalidConfig, Profile as _, ndp, phost};
use serde::Deserialize;

use super::super::derived::{Amount, Far, Grid, Rule};
use super::super::keys::{Carried, Place, keys};
use super::super::problem::Problem;
use super::super::values::{AtLeast, Unit};
use crate::path::Path;

keys! {
    /// NDP's keys. A missing key has the value of the profile.
    struct NdpKeys for ndp::Config {
        /// `"paper"`: the authors' simulator. `"polo-slides"`: Polo's slides. Default: `"paper"`.
        profile: Profile,
        /// Packets sent without being pulled. Default: paper: 15, or three idle round trips if
        /// more; polo-slides: 12.
        initial_window: u16 => initial_window,
        /// Shortest and longest retransmission timeout. Default: paper: `"5 ms"`, `"10 ms"`;
        /// polo-slides: `"1 ms"`, `"8 ms"`.
        min_rto: Unit<Span> => min_rto,
        /// Shortest and longest retransmission timeout. Default: paper: `"5 ms"`, `"10 ms"`;
        /// polo-slides: `"1 ms"`, `"8 ms"`.
        max_rto: Unit<Span> => max_rto,
        /// Percentage of its link that a receiver pulls. Default: 99.
        pull_percent: u32 => pull_percent,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
        /// `"sender"`: all paths in random order, without those with many NACKs. `"switches"`:
        /// switches choose at random (real ones by hash). Default: `"sender"`.
        paths: Paths,
    }
}

/// Who chooses the paths of sprayed packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Paths {
    /// The sender chooses them, as in the paper.
    #[default]
    Sender,
    /// The switches choose them at random.
    Switches,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Profile {
    /// The authors' values, or larger ones where the fabric's round trip is longer than theirs.
    #[default]
    Paper,
    PoloSlides,
}

impl NdpKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<ndp::Config>] = &[
        Rule {
            key: "initial_window",
            of: |config| Some(Amount::Packets(u64::from(config.initial_window))),
            why: "15 packets (htsim), or three idle round trips, which cover the queues on the path",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 0.75, 1.5, 2.0]),
        },
        Rule {
            key: "min_rto",
            of: |config| Some(Amount::Time(config.min_rto)),
            why: "htsim's; only lost headers wait for it",
            far: Far::TIMER,
            grid: Grid::None,
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<ndp::Config, Problem> {
        if fabric.config().switch.trim.is_none() {
            let message = "NDP needs switches that trim: set fabric.switch.trim = true";
            return Err(place.bad("name", message).with_help(
                "it makes the queues of data short for every transport of this fabric; a sweep \
                 that compares sets it where the name is \"ndp\", with `cases`",
            ));
        }
        let link = fabric.host_rate();
        let mut config = match self.profile.unwrap_or_default() {
            Profile::Paper => {
                let mut config = ndp::Config::paper(link);
                let full = frame::wire_bytes(frame::MTU) as u32;
                let round_trip = Path::longest(fabric).base_rtt_bytes().div_ceil(full);
                let round_trip = u16::try_from(round_trip).unwrap_or(u16::MAX);
                // The window has to cover the queues on the path too: with one idle round trip a permutation on a
                // fat-tree uses 78 % of the links, with two 92 %, with three 93 %.
                let window = round_trip.saturating_mul(3);
                config.initial_window = config.initial_window.max(window);
                config
            }
            Profile::PoloSlides => ndp::Config::polo_slides(link),
        };
        self.apply(&mut config);
        if self.max_rto.is_none() {
            config.max_rto = config.max_rto.max(config.min_rto);
        }
        if self.paths.unwrap_or_default() == Paths::Sender {
            let paths = fabric.config().topology.paths();
            // With more paths than a sender can keep track of, random ones serve as well: the switches choose (0).
            config.paths = u16::try_from(paths).ok().filter(|n| *n <= ndp::MAX_PATHS).unwrap_or(0);
        }
        config.check().map_err(|error| self.invalid(place, error, &config))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }

    /// Returns an error for what the transport reports about its configuration, at the key that causes it.
    fn invalid(&self, place: Place<'_>, error: InvalidConfig, config: &ndp::Config) -> Problem {
        use InvalidConfig as E;
        match error {
            E::Rule { field: "pull_percent", .. } => {
                place.bad("pull_percent", "`pull_percent` must be from 1 to 100")
            }
            E::Above(..) => place.bad("max_rto", "`max_rto` must not be below `min_rto`"),
            E::Patience(_) => {
                let key = if self.max_rto.is_some() { "max_rto" } else { "min_rto" };
                let silent = config.common.patience;
                let message = format!("`{key}` must be below {silent}: then a peer counts as dead");
                place.bad(key, message)
            }
            _ => place.invalid(&error),
        }
    }
}

keys! {
    /// pHost's keys. A missing key has the value of the profile.
    struct PHostKeys for phost::Config {
        /// `"paper"`: the authors' simulator, for the fabric's round trip. `"yaps"`: Homa's paper.
        /// `"polo-slides"`: Polo's slides. Default: `"paper"`.
        profile: PHostProfile,
        /// Packets that need no token, and most unused tokens of a message. Default: paper: 8, or a
        /// round trip and one more; yaps: 7 (8 unused); polo-slides: 12.
        free_tokens: AtLeast<1, u16>,
        /// Longer messages have no free packets. Default: false; yaps: true.
        free_for_short_only: bool => free_for_short_only,
        /// Time before the end of the free packets of the next token. Default: a round trip; yaps,
        /// polo-slides: `"0 s"`.
        token_lead: Unit<Span> => token_lead,
        /// Validity of a token. Default: 1.5 full packets on the link.
        token_expiry: Unit<Span> => token_expiry,
        /// Time after its last token until a message gets tokens for missing packets; late data
        /// adds twice the mean excess. Default: 9 full packets; paper: or a round trip and one
        /// more.
        resend_after: Unit<Span> => resend_after,
        /// Pause of a message whose sender uses no tokens. Default: 25 full packets; paper: or three
        /// round trips and four packets.
        window_timeout: Unit<Span> => window_timeout,
        /// Next message: `"srpt"` or `"round-robin"`. Default: `"srpt"`; polo-slides:
        /// `"round-robin"`.
        order: Order => order,
        /// 2: messages that need no token have priority. 1: none has. Default: 2; yaps: 1.
        data_levels: u8,
        /// Packets take any path. Default: true.
        spray: bool => common.spray,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PHostProfile {
    /// The authors' values, or larger ones where the fabric's round trip is longer than theirs.
    #[default]
    Paper,
    /// The values and rules of the simulations in Homa's paper.
    Yaps,
    PoloSlides,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    Srpt,
    RoundRobin,
}

impl From<Order> for phost::TokenOrder {
    fn from(order: Order) -> Self {
        match order {
            Order::Srpt => Self::Srpt,
            Order::RoundRobin => Self::RoundRobin,
        }
    }
}

impl PHostKeys {
    /// The parameters that follow from the fabric or that its paper names.
    pub(super) const RULES: &'static [Rule<phost::Config>] = &[
        Rule {
            key: "free_tokens",
            of: |config| Some(Amount::Packets(u64::from(config.free_tokens))),
            why: "8 (the authors' simulator), or an idle round trip and one more",
            far: Far::WINDOW,
            grid: Grid::Factors(&[0.5, 1.5, 2.0]),
        },
        Rule {
            key: "token_lead",
            of: |config| Some(Amount::Time(config.token_lead)),
            why: "an idle round trip (Rackweave's choice)",
            far: Far::NEVER,
            grid: Grid::None,
        },
        Rule {
            key: "token_expiry",
            of: |config| Some(Amount::Time(config.token_expiry)),
            why: "1.5 full packets on the link (the authors' simulator)",
            far: Far::NEVER,
            grid: Grid::Factors(&[2.0, 4.0]),
        },
        Rule {
            key: "resend_after",
            of: |config| Some(Amount::Time(config.resend_after)),
            why: "9 full packets (the authors' simulator), or an idle round trip and one more",
            far: Far::TIMER,
            grid: Grid::Factors(&[2.0, 4.0]),
        },
        Rule {
            key: "window_timeout",
            of: |config| Some(Amount::Time(config.window_timeout)),
            why: "25 full packets (the authors' simulator), or three idle round trips and four packets (dcPIM's scripts for pHost)",
            far: Far::TIMER,
            grid: Grid::Factors(&[0.5, 2.0]),
        },
        Rule {
            key: "data_levels",
            of: |config| {
                Some(Amount::Number(if config.short_priority > config.long_priority {
                    2.0
                } else {
                    1.0
                }))
            },
            why: "messages that need no token have priority (CoNEXT 2015)",
            far: Far::NEVER,
            grid: Grid::Values(&["1"]),
        },
    ];

    pub(super) fn resolve(
        &self,
        place: Place<'_>,
        fabric: &Fabric,
        carried: Carried<'_>,
    ) -> Result<phost::Config, Problem> {
        let link = fabric.host_rate();
        let mut config = match self.profile.unwrap_or_default() {
            PHostProfile::Paper => {
                phost::Config::paper(link).for_round_trip(Path::longest(fabric).base_rtt())
            }
            PHostProfile::Yaps => phost::Config::yaps(link),
            PHostProfile::PoloSlides => phost::Config::polo_slides(link),
        };
        if let Some(free_tokens) = self.free_tokens {
            config = config.with_free_tokens(free_tokens.0);
        }
        self.apply(&mut config);
        match self.data_levels {
            Some(1) => config.short_priority = config.long_priority,
            Some(2) => config.short_priority = config.long_priority + 1,
            None => {}
            Some(_) => return Err(place.bad("data_levels", "`data_levels` must be 1 or 2")),
        }
        config.check().map_err(|error| place.invalid(&error))?;
        place.refuse_longer_messages(carried, config.common.max_message_bytes)?;
        Ok(config)
    }
}
