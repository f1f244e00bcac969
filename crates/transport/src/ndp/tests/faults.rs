//! Networks that lose, double, reorder and delay, and hosts that restart.

use std::sync::Arc;

use proptest::prelude::*;

use super::{Config, Host, LINK};
use crate::common::chaos;

fn config(polo: bool) -> Config {
    if polo { Config::polo_slides(LINK) } else { Config::paper(LINK) }
}

proptest! {
    #[test]
    fn each_message_arrives_once_or_fails(schedule in chaos::schedules(), polo: bool) {
        let config = Arc::new(config(polo));
        let idle = |host: &Host| {
            host.check_bounds();
            host.is_idle()
        };
        chaos::run(&schedule, |id| Host::new(id, Arc::clone(&config)), idle)?;
    }
}

#[test]
fn moderate_faults_fail_nothing() {
    for polo in [false, true] {
        let config = Arc::new(config(polo));
        chaos::moderate_faults_fail_nothing(|id| Host::new(id, Arc::clone(&config)));
    }
}
