//! Scenarios that are part of the command.

/// A scenario that can be run by its name.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// Its name.
    pub name: &'static str,
    /// Where it stands in the source tree.
    pub file: &'static str,
    /// The file's text.
    pub text: &'static str,
}

/// All of them.
pub const SCENARIOS: [Builtin; 33] = [
    Builtin {
        name: "quickstart",
        file: "scenarios/quickstart.toml",
        text: include_str!("../../../scenarios/quickstart.toml"),
    },
    Builtin {
        name: "incast",
        file: "scenarios/incast.toml",
        text: include_str!("../../../scenarios/incast.toml"),
    },
    Builtin {
        name: "many-senders",
        file: "scenarios/many-senders.toml",
        text: include_str!("../../../scenarios/many-senders.toml"),
    },
    Builtin {
        name: "testbed",
        file: "scenarios/testbed.toml",
        text: include_str!("../../../scenarios/testbed.toml"),
    },
    Builtin {
        name: "testbed-incast",
        file: "scenarios/testbed-incast.toml",
        text: include_str!("../../../scenarios/testbed-incast.toml"),
    },
    Builtin {
        name: "homa-sigcomm18",
        file: "scenarios/papers/homa-sigcomm18.toml",
        text: include_str!("../../../scenarios/papers/homa-sigcomm18.toml"),
    },
    Builtin {
        name: "homa-rtt",
        file: "scenarios/papers/homa/homa-rtt.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-rtt.toml"),
    },
    Builtin {
        name: "homa-window",
        file: "scenarios/papers/homa/homa-window.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-window.toml"),
    },
    Builtin {
        name: "homa-mixed-rtt",
        file: "scenarios/papers/homa/homa-mixed-rtt.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-mixed-rtt.toml"),
    },
    Builtin {
        name: "homa-incast",
        file: "scenarios/papers/homa/homa-incast.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-incast.toml"),
    },
    Builtin {
        name: "homa-tcp",
        file: "scenarios/papers/homa/homa-tcp.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-tcp.toml"),
    },
    Builtin {
        name: "homa-stream",
        file: "scenarios/papers/homa/stream.toml",
        text: include_str!("../../../scenarios/papers/homa/stream.toml"),
    },
    Builtin {
        name: "homa-future-host",
        file: "scenarios/papers/homa/homa-future-host.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-future-host.toml"),
    },
    Builtin {
        name: "homa-future-average",
        file: "scenarios/papers/homa/homa-future-average.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-future-average.toml"),
    },
    Builtin {
        name: "homa-future-pacer",
        file: "scenarios/papers/homa/homa-future-pacer.toml",
        text: include_str!("../../../scenarios/papers/homa/homa-future-pacer.toml"),
    },
    Builtin {
        name: "polo-core",
        file: "scenarios/papers/polo/core.toml",
        text: include_str!("../../../scenarios/papers/polo/core.toml"),
    },
    Builtin {
        name: "polo-edge",
        file: "scenarios/papers/polo/edge.toml",
        text: include_str!("../../../scenarios/papers/polo/edge.toml"),
    },
    Builtin {
        name: "polo-queue",
        file: "scenarios/papers/polo/queue.toml",
        text: include_str!("../../../scenarios/papers/polo/queue.toml"),
    },
    Builtin {
        name: "polo-recovery",
        file: "scenarios/papers/polo/recovery.toml",
        text: include_str!("../../../scenarios/papers/polo/recovery.toml"),
    },
    Builtin {
        name: "polo-tail",
        file: "scenarios/papers/polo/tail.toml",
        text: include_str!("../../../scenarios/papers/polo/tail.toml"),
    },
    Builtin {
        name: "polo-incast",
        file: "scenarios/papers/polo/incast.toml",
        text: include_str!("../../../scenarios/papers/polo/incast.toml"),
    },
    Builtin {
        name: "orca-execution",
        file: "scenarios/papers/orca/execution.toml",
        text: include_str!("../../../scenarios/papers/orca/execution.toml"),
    },
    Builtin {
        name: "orca-cores",
        file: "scenarios/papers/orca/cores.toml",
        text: include_str!("../../../scenarios/papers/orca/cores.toml"),
    },
    Builtin {
        name: "orca-link-bound",
        file: "scenarios/papers/orca/link-bound.toml",
        text: include_str!("../../../scenarios/papers/orca/link-bound.toml"),
    },
    Builtin {
        name: "orca-scaling",
        file: "scenarios/papers/orca/scaling.toml",
        text: include_str!("../../../scenarios/papers/orca/scaling.toml"),
    },
    Builtin {
        name: "orca-failover",
        file: "scenarios/papers/orca/failover.toml",
        text: include_str!("../../../scenarios/papers/orca/failover.toml"),
    },
    Builtin {
        name: "orca-state",
        file: "scenarios/papers/orca/state.toml",
        text: include_str!("../../../scenarios/papers/orca/state.toml"),
    },
    Builtin {
        name: "receiver-driven-sigcomm18",
        file: "scenarios/papers/receiver-driven-sigcomm18.toml",
        text: include_str!("../../../scenarios/papers/receiver-driven-sigcomm18.toml"),
    },
    Builtin {
        name: "two-worlds-cast",
        file: "scenarios/papers/two-worlds/two-worlds-cast.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/two-worlds-cast.toml"),
    },
    Builtin {
        name: "two-worlds-cast-8",
        file: "scenarios/papers/two-worlds/two-worlds-cast-8.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/two-worlds-cast-8.toml"),
    },
    Builtin {
        name: "two-worlds-incast",
        file: "scenarios/papers/two-worlds/two-worlds-incast.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/two-worlds-incast.toml"),
    },
    Builtin {
        name: "two-worlds-load",
        file: "scenarios/papers/two-worlds/two-worlds-load.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/two-worlds-load.toml"),
    },
    Builtin {
        name: "two-worlds-split",
        file: "scenarios/papers/two-worlds/two-worlds-split.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/two-worlds-split.toml"),
    },
];

/// Files of claims, as [`Builtin`]s.
pub const CLAIMS: [Builtin; 4] = [
    Builtin {
        name: "homa",
        file: "scenarios/papers/homa/claims.toml",
        text: include_str!("../../../scenarios/papers/homa/claims.toml"),
    },
    Builtin {
        name: "polo",
        file: "scenarios/papers/polo/claims.toml",
        text: include_str!("../../../scenarios/papers/polo/claims.toml"),
    },
    Builtin {
        name: "orca",
        file: "scenarios/papers/orca/claims.toml",
        text: include_str!("../../../scenarios/papers/orca/claims.toml"),
    },
    Builtin {
        name: "two-worlds",
        file: "scenarios/papers/two-worlds/claims.toml",
        text: include_str!("../../../scenarios/papers/two-worlds/claims.toml"),
    },
];

/// The built-in scenario of this name; those of papers also as "papers/NAME".
#[must_use]
pub fn scenario(name: &str) -> Option<Builtin> {
    let short = name.strip_prefix("papers/").unwrap_or(name);
    SCENARIOS.into_iter().find(|scenario| scenario.name == short)
}
