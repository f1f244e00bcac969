//! Messages of transports that repair nothing, from when their last packet was sent.
//!
//! They are no backlog: queues in the fabric have an end, and what these dropped never arrives. The run stops waiting
//! for one after the transport's time ([`TransportConfig::lost_after`](rackweave_transport::TransportConfig::lost_after)).

use std::collections::BTreeMap;

use rackweave_core::{HostId, MessageId, Time};
use rackweave_workload::app::MessageKey;

use super::World;
use crate::model::Model;

/// The messages that were sent for good and have not ended.
#[derive(Debug)]
pub(super) struct Unrepaired {
    /// For each host, whether the message was sent, by [`MessageKey::slot`].
    sent: Vec<Vec<bool>>,
    /// By the time at which they are lost, also after they have arrived.
    due: BTreeMap<Time, Vec<(HostId, MessageKey)>>,
}

impl Unrepaired {
    pub(super) fn new(hosts: u32) -> Self {
        Self { sent: vec![Vec::new(); hosts as usize], due: BTreeMap::new() }
    }

    fn sent(&mut self, host: HostId, key: MessageKey, lost_at: Time) {
        let sent = &mut self.sent[host.0 as usize];
        sent.resize(sent.len().max(key.slot() + 1), false);
        sent[key.slot()] = true;
        self.due.entry(lost_at).or_default().push((host, key));
    }

    /// Forgets a message that has ended; returns whether it was sent for good, and so was no backlog.
    pub(super) fn ended(&mut self, host: HostId, key: MessageKey) -> bool {
        self.sent[host.0 as usize].get_mut(key.slot()).is_some_and(std::mem::take)
    }

    /// Removes a message that is lost by this time, if it has not arrived.
    fn take_due(&mut self, now: Time) -> Option<(HostId, MessageKey)> {
        let mut first = self.due.first_entry().filter(|first| *first.key() <= now)?;
        let message = first.get_mut().pop();
        if first.get().is_empty() {
            first.remove();
        }
        message
    }
}

impl<M: Model> World<'_, M> {
    /// Notes that a host has sent the last packet of a message, if nothing will repair it.
    pub(super) fn sent_for_good(&mut self, host: HostId, id: MessageId) {
        let now = self.net.now();
        let apps = &mut self.apps;
        let Some(key) = apps.own_key(host, id) else { return };
        let Some(start) = apps.app(host).start_of(key) else { return };
        let (config, _) = apps.streams[usize::from(start.stream)];
        // A message may wait for its application for longer.
        let is_instant = config.workload.application.is_instant();
        if let Some(after) = config.transport.lost_after().filter(|_| is_instant) {
            apps.backlog = apps.backlog.saturating_sub(apps.exchanged(start));
            apps.unrepaired.sent(host, key, now.saturating_add(after));
        }
    }

    /// Stops to wait for the messages that are lost by this time.
    pub(super) fn give_up_lost(&mut self, now: Time) {
        let apps = &mut self.apps;
        while let Some((host, key)) = apps.unrepaired.take_due(now) {
            if apps.app(host).route(key).is_some() {
                apps.collector.lost(apps.records[host.0 as usize][key.slot()]);
            }
        }
    }
}
