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
pub const SCENARIOS: [Builtin; 4] = [
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
        name: "homa-sigcomm18",
        file: "scenarios/papers/homa-sigcomm18.toml",
        text: include_str!("../../../scenarios/papers/homa-sigcomm18.toml"),
    },
    Builtin {
        name: "receiver-driven-sigcomm18",
        file: "scenarios/papers/receiver-driven-sigcomm18.toml",
        text: include_str!("../../../scenarios/papers/receiver-driven-sigcomm18.toml"),
    },
];

/// Files of claims, as [`Builtin`]s.
pub const CLAIMS: [Builtin; 2] = [
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
];

/// The built-in scenario of this name; those of papers also as "papers/NAME".
#[must_use]
pub fn scenario(name: &str) -> Option<Builtin> {
    let short = name.strip_prefix("papers/").unwrap_or(name);
    SCENARIOS.into_iter().find(|scenario| scenario.name == short)
}
