//! The group systems whose programs the user-space switch can run: the only list of them.
//!
//! A new system implements [`System`](rackweave_group::system::System) in `group`, and is added to [`Systems`] and
//! [`ProgramName`] here. Systems in one tuple run on the same switches, each on its own packets: `type Systems =
//! (Option<Orca>, Option<Next>)`.

use rackweave_core::HostId;
use rackweave_group::orca::system::Orca;
use rackweave_wire::orca::Key;

use crate::cast::Scheme;

/// The systems that the switches of a fabric run; `None` if they only forward.
pub type Systems = Option<Orca>;

/// Returns what the testbed's switches run for a cast over this scheme.
pub(crate) fn of_scheme(scheme: &Scheme) -> Systems {
    match scheme {
        Scheme::Orca(orca) => Some(Orca { controller: orca.controller, key: None }),
        Scheme::Unicast { .. } | Scheme::Streams { .. } => None,
    }
}

/// The name of a system's switch programs on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgramName {
    /// Forwarding without any program.
    #[default]
    Plain,
    /// The label switches of Orca.
    Orca,
}

impl ProgramName {
    /// All names, in the order in which the command lists them.
    pub const ALL: [Self; 2] = [Self::Plain, Self::Orca];

    /// Returns the name and a short help text.
    #[must_use]
    pub const fn describe(self) -> (&'static str, &'static str) {
        match self {
            Self::Plain => ("plain", "Nothing"),
            Self::Orca => ("orca", "Orca: multicast by labels in packets"),
        }
    }

    /// Returns the systems for this name, a controller's host and a key of all members.
    ///
    /// # Errors
    /// If the system has no controller or no key, but one is given.
    pub const fn system(
        self,
        controller: Option<HostId>,
        key: Option<Key>,
    ) -> Result<Systems, &'static str> {
        match self {
            Self::Plain if controller.is_some() || key.is_some() => {
                Err("--controller and --key-file are of use with --program orca only")
            }
            Self::Plain => Ok(None),
            Self::Orca => Ok(Some(Orca { controller, key })),
        }
    }
}
