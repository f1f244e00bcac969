//! Events for `tracing`, which operators read.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use rackweave_rpc::{CallError, Node, NodeConfig, Refusal};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::common::{bytes, homa, node};

/// Collects the events of this thread as text.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Collected {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("rackweave_rpc")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn a_node_that_serves_nobody_says_so_and_failed_calls_name_peer_and_reason() {
    let collected = Collected::default();
    // The runtime of this test has one thread, so that the tasks of nodes are on it too.
    let _guard = tracing::subscriber::set_default(collected.clone());
    let lonely = Node::bind(NodeConfig::new(homa(), ([127, 0, 0, 1], 0).into())).unwrap();
    let there = node(&homa());
    let peer = lonely.peer(there.local_addr());
    // No server takes requests there.
    let error = lonely.client().call(peer, bytes(10)).await.unwrap_err();
    assert!(matches!(error, CallError::Refused { why: Refusal::NotServing, .. }), "{error}");
    lonely.shutdown().await;
    let lines = collected.0.lock().unwrap().clone();
    let has =
        |parts: &[&str]| lines.iter().any(|line| parts.iter().all(|part| line.contains(part)));
    let address = there.local_addr().to_string();
    assert!(has(&["INFO", "node bound", &lonely.local_addr().to_string()]), "{lines:#?}");
    assert!(has(&["INFO", "serves only peers that it calls"]), "{lines:#?}");
    assert!(has(&["DEBUG", "call failed", &address, "refused the request"]), "{lines:#?}");
    assert!(has(&["DEBUG", "request refused", "NotServing"]), "{lines:#?}");
}
