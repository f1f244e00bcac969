//! Networks that lose, double, reorder and delay, and hosts that restart.

use std::sync::Arc;

use proptest::prelude::*;

use super::{Config, Host};
use crate::common::chaos;
use crate::polo::DriveOrder;

/// The protocol, or one of its variants.
fn config(variant: u32) -> Config {
    let slides = Config::slides();
    match variant {
        0 => slides,
        1 => Config { wasted_driving_rule: false, ..slides },
        2 => Config { recovery_2: false, ..slides },
        3 => Config { recovery_1: false, ..slides },
        4 => Config { first_window: 1, order: DriveOrder::FewestLeft, ..slides },
        _ => Config { spray: true, reorder_margin: 3, wake_in_quiet_epochs: false, ..slides },
    }
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in chaos::schedules(), variant in 0..6_u32) {
        let config = Arc::new(config(variant));
        let idle = |host: &Host| {
            host.check_bounds();
            host.is_idle()
        };
        chaos::run(&schedule, |id| Host::new(id, Arc::clone(&config)), idle)?;
    }
}

#[test]
fn moderate_faults_fail_nothing() {
    for variant in 0..6 {
        let config = Arc::new(config(variant));
        chaos::moderate_faults_fail_nothing(|id| Host::new(id, Arc::clone(&config)));
    }
}
