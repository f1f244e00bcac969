//! What a node has done.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a node, since its start.
#[derive(Debug, Default)]
pub struct Counts {
    /// Requests for content that the store had.
    pub hits: AtomicU64,
    /// Requests for content that it had not.
    pub misses: AtomicU64,
    /// Bytes of chunks from registries.
    pub from_registry: AtomicU64,
    /// Bytes of chunks from other nodes.
    pub from_nodes: AtomicU64,
    /// Bytes of chunks for other nodes.
    pub to_nodes: AtomicU64,
    /// Bytes for runtimes.
    pub to_runtimes: AtomicU64,
    /// Blobs whose content did not have their digest.
    pub damaged: AtomicU64,
    /// Blobs that were removed for lack of room.
    pub evicted: AtomicU64,
}

impl Counts {
    pub(crate) fn add(counter: &AtomicU64, bytes: u64) {
        counter.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Their names, meanings and values.
    #[must_use]
    pub fn all(&self) -> [(&'static str, &'static str, u64); 8] {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("hits", "Requests for content that the store had.", of(&self.hits)),
            ("misses", "Requests for content that the store did not have.", of(&self.misses)),
            ("registry_bytes", "Bytes from registries.", of(&self.from_registry)),
            ("node_bytes", "Bytes from other nodes.", of(&self.from_nodes)),
            ("served_node_bytes", "Bytes for other nodes.", of(&self.to_nodes)),
            ("served_runtime_bytes", "Bytes for container runtimes.", of(&self.to_runtimes)),
            ("damaged", "Blobs that did not have their digest.", of(&self.damaged)),
            ("evicted", "Blobs that were removed for lack of room.", of(&self.evicted)),
        ]
    }

    /// The counters in Prometheus' format.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        let line = |(name, help, value): (&str, &str, u64)| {
            format!(
                "# HELP rackweave_node_{name}_total {help}\n# TYPE rackweave_node_{name}_total counter\n\
                 rackweave_node_{name}_total {value}\n"
            )
        };
        self.all().into_iter().map(line).collect()
    }
}
