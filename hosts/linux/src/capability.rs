//! Capabilities of this process (`capabilities(7)`).

/// A capability that something here needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Configures networks.
    NetAdmin,
    /// Enters and mounts namespaces.
    SysAdmin,
    /// Loads programs into the kernel.
    Bpf,
}

impl Capability {
    /// The number in `linux/capability.h`.
    const fn number(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::SysAdmin => 21,
            Self::Bpf => 39,
        }
    }

    /// Whether this process has it. If the system does not say so, it has not.
    #[must_use]
    pub fn is_held(self) -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        effective.is_some_and(|bits| bits >> self.number() & 1 == 1)
    }
}
