//! Scenarios and claims that are compiled into the command.

/// A scenario that can be run by its name.
#[derive(Clone, Copy, Debug)]
pub struct Builtin {
    /// The name that `rackweave run` accepts.
    pub name: &'static str,
    /// The path of its file in the source tree.
    pub file: &'static str,
    /// The TOML text of its file.
    pub text: &'static str,
}

/// Declares built-ins by their name and their file below `scenarios/`.
macro_rules! builtins {
    ($($name:literal: $file:literal,)*) => {
        &[$(Builtin {
            name: $name,
            file: concat!("scenarios/", $file),
            text: include_str!(concat!("../scenarios/", $file)),
        }),*]
    };
}

/// The built-in scenarios, in the order in which they are listed.
pub const SCENARIOS: &[Builtin] = builtins! {
    "quickstart": "quickstart.toml",
    "load-sweep": "recipes/load-sweep.toml",
    "seeds": "recipes/seeds.toml",
    "own-sizes": "recipes/own-sizes.toml",
    "rpcs-and-incast": "recipes/rpcs-and-incast.toml",
    "buffer-size": "recipes/buffer-size.toml",
    "oversubscription": "recipes/oversubscription.toml",
    "link-failure": "recipes/link-failure.toml",
    "shuffle": "recipes/shuffle.toml",
    "packets": "recipes/packets.toml",
    "files-to-many": "recipes/files-to-many.toml",
    "images": "recipes/images.toml",
    "sums": "recipes/sums.toml",
    "collectives": "recipes/collectives.toml",
    "incast": "incast.toml",
    "many-senders": "many-senders.toml",
    "compare-load": "compare-load.toml",
    "compare-tuned": "compare-tuned.toml",
    "compare-curve": "compare-curve.toml",
    "compare-incast": "compare-incast.toml",
    "compare-permutation": "compare-permutation.toml",
    "cast-beside-traffic": "cast-beside-traffic.toml",
    "imaging-1000": "imaging-1000.toml",
    "imaging-night": "imaging-night.toml",
    "rackless": "rackless.toml",
    "reduce-absorption": "reduce-absorption.toml",
    "reduce-beside-traffic": "reduce-beside-traffic.toml",
    "allreduce": "allreduce.toml",
    "collectives-in-network": "collectives-in-network.toml",
    "testbed": "testbed.toml",
    "testbed-incast": "testbed-incast.toml",
    "homa-sigcomm18": "papers/homa-sigcomm18.toml",
    "homa-rtt": "papers/homa/homa-rtt.toml",
    "homa-window": "papers/homa/homa-window.toml",
    "homa-window-host": "papers/homa/homa-window-host.toml",
    "homa-mixed-rtt": "papers/homa/homa-mixed-rtt.toml",
    "homa-mixed-rtt-incast": "papers/homa/homa-mixed-rtt-incast.toml",
    "homa-incast": "papers/homa/homa-incast.toml",
    "homa-tcp": "papers/homa/homa-tcp.toml",
    "homa-stream": "papers/homa/stream.toml",
    "homa-future-host": "papers/homa/homa-future-host.toml",
    "homa-future-average": "papers/homa/homa-future-average.toml",
    "homa-future-pacer": "papers/homa/homa-future-pacer.toml",
    "polo-core": "papers/polo/core.toml",
    "polo-edge": "papers/polo/edge.toml",
    "polo-edge-rto": "papers/polo/edge-rto.toml",
    "polo-queue": "papers/polo/queue.toml",
    "polo-recovery": "papers/polo/recovery.toml",
    "polo-tail": "papers/polo/tail.toml",
    "polo-tail-phost": "papers/polo/tail-phost.toml",
    "polo-incast": "papers/polo/incast.toml",
    "pfabric-sigcomm18": "papers/pfabric/pfabric-sigcomm18.toml",
    "sird-nsdi25": "papers/sird/sird-nsdi25.toml",
    "sird-incast": "papers/sird/sird-incast.toml",
    "swift-permutation": "papers/swift/swift-permutation.toml",
    "swift-incast": "papers/swift/swift-incast.toml",
    "swift-fairness": "papers/swift/swift-fairness.toml",
    "swift-load": "papers/swift/swift-load.toml",
    "dcpim-sigcomm22": "papers/dcpim/dcpim-sigcomm22.toml",
    "dcpim-rounds": "papers/dcpim/dcpim-rounds.toml",
    "eqds-validate": "papers/uet/eqds-validate.toml",
    "uet-validate": "papers/uet/uet-validate.toml",
    "orca-execution": "papers/orca/execution.toml",
    "orca-cores": "papers/orca/cores.toml",
    "orca-link-bound": "papers/orca/link-bound.toml",
    "orca-scaling": "papers/orca/scaling.toml",
    "orca-failover": "papers/orca/failover.toml",
    "orca-state": "papers/orca/state.toml",
    "orca-overhead": "papers/orca/overhead.toml",
    "frisbee-2003": "papers/swp2p/frisbee-2003.toml",
    "frisbee-2003-nak": "papers/swp2p/frisbee-2003-nak.toml",
    "frisbee-2003-variants": "papers/swp2p/frisbee-2003-variants.toml",
    "swp2p-load": "papers/swp2p/swp2p-load.toml",
    "swp2p-hiccup": "papers/swp2p/swp2p-hiccup.toml",
    "swp2p-order": "papers/swp2p/swp2p-order.toml",
    "swp2p-efficiency": "papers/swp2p/swp2p-efficiency.toml",
    "ordc-groups": "papers/ordc/groups.toml",
    "ordc-jct": "papers/ordc/jct.toml",
    "ordc-pairs": "papers/ordc/pairs.toml",
    "ordc-sensitivity": "papers/ordc/sensitivity.toml",
    "ordc-placement": "papers/ordc/placement.toml",
    "ordc-correct": "papers/ordc/correct.toml",
    "ordc-oracle": "papers/ordc/oracle.toml",
    "receiver-driven-sigcomm18": "papers/receiver-driven-sigcomm18.toml",
    "two-worlds-cast": "papers/two-worlds/two-worlds-cast.toml",
    "two-worlds-cast-8": "papers/two-worlds/two-worlds-cast-8.toml",
    "two-worlds-frisbee": "papers/two-worlds/two-worlds-frisbee.toml",
    "two-worlds-image": "papers/two-worlds/two-worlds-image.toml",
    "two-worlds-incast": "papers/two-worlds/two-worlds-incast.toml",
    "two-worlds-load": "papers/two-worlds/two-worlds-load.toml",
    "two-worlds-reduce": "papers/two-worlds/two-worlds-reduce.toml",
    "two-worlds-split": "papers/two-worlds/two-worlds-split.toml",
};

/// The built-in files of claims, by the name of the paper.
pub const CLAIMS: &[Builtin] = builtins! {
    "homa": "papers/homa/claims.toml",
    "polo": "papers/polo/claims.toml",
    "pfabric": "papers/pfabric/claims.toml",
    "sird": "papers/sird/claims.toml",
    "swift": "papers/swift/claims.toml",
    "dcpim": "papers/dcpim/claims.toml",
    "uet": "papers/uet/claims.toml",
    "orca": "papers/orca/claims.toml",
    "swp2p": "papers/swp2p/claims.toml",
    "ordc": "papers/ordc/claims.toml",
    "two-worlds": "papers/two-worlds/claims.toml",
};

impl Builtin {
    /// Whether it is a recipe: a short scenario that answers one question (`docs/recipes.md`).
    #[must_use]
    pub fn is_recipe(&self) -> bool {
        self.file.starts_with("scenarios/recipes/")
    }

    /// Returns the paper that the scenario reproduces, if any.
    #[must_use]
    pub fn paper(&self) -> Option<&'static str> {
        let rest = self.file.strip_prefix("scenarios/papers/")?;
        let of_claims = CLAIMS.iter().find(|claims| rest.starts_with(claims.name));
        Some(of_claims.map_or("other", |claims| claims.name))
    }
}

/// Returns the built-in scenario with this name. Those of papers are also found as "papers/NAME".
#[must_use]
pub fn scenario(name: &str) -> Option<Builtin> {
    let short = name.strip_prefix("papers/").unwrap_or(name);
    SCENARIOS.iter().find(|scenario| scenario.name == short).copied()
}
