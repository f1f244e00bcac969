//! Tests of the controller.

mod chaos;
mod rules;

use rackweave_core::{Rng, Span, Time};

use super::message::{Abilities, TorAbility, Wiring};
use super::record::{Change, Saved, Store};
use super::{Agent, Config, Controller};
use crate::config::Configuration;
use crate::cost::Scope;
use crate::fabric::{Architecture, Fabric};
use crate::plan::Algorithm;
use crate::pod::Pod;

fn ms(time: u64) -> Time {
    Time::ZERO + Span::from_ms(time)
}

/// The paper's pod.
fn config() -> Config {
    let fabric = Fabric::new(Pod::paper(), Architecture::P4Ordc);
    Config { horizon: 4, ..Config::new(fabric, Algorithm::Heuristic) }
}

fn controller(saved: Saved, now: Time) -> Controller {
    Controller::new(config(), saved, 77, Rng::stream(1, 0, 0, "controller"), now)
}

/// The abilities of the switch of the whole pod. A change of circuits takes 25 ms.
fn abilities() -> Abilities {
    let ten_gbps = 10_000_000_000;
    let tors = (0..).zip([(4, 2, 65_536), (2, 1, 0), (2, 1, 0)]);
    let tor = |(tor, (ports, uplinks, slots))| TorAbility {
        tor,
        ports,
        uplinks,
        uplink_bps: ten_gbps,
        slots,
        address: "0".to_owned(),
    };
    Abilities {
        servers: 8,
        server_bps: ten_gbps,
        dark_ns: 25_000_000,
        dark: Scope::All,
        tors: tors.map(tor).collect(),
    }
}

fn agent(boot: u64, now: Time) -> Agent {
    let wiring = Wiring::of(&Configuration::in_order(&Pod::paper()));
    Agent::new("pod".to_owned(), boot, abilities(), Some(wiring), now)
}

/// A store that a test can read, and that can fail.
#[derive(Default)]
struct Memory {
    saved: Saved,
    fails: bool,
}

impl Store for Memory {
    type Error = ();

    fn write(&mut self, changes: &[Change]) -> Result<(), ()> {
        if self.fails {
            return Err(());
        }
        self.saved.apply(changes);
        Ok(())
    }
}
