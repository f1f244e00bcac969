//! The processors of hosts: packets that arrive wait for them, and packets to be sent cost before they leave.
//!
//! A *task* is a thread that works on a processor in turns. See docs/design/hosts.md#processors, and
//! [`HostConfig`]. Each task has at most one valid pending event, the one at its `until`; others are ignored.
//!
//! That a turn takes what has arrived by its beginning is what `recvmmsg` does. That tasks share processors first come,
//! first served is our simplification of the kernel's scheduler. A turn lasts as long as its task has work, but on a shared processor for
//! which others wait not longer than a slice and the batch that the slice ends in; the task then waits behind the others.
//!
//! Packets that a switch's program consumes reach no host. The switch process works on them all the same, when they have been consumed; the
//! answers that programs make do not wait for that work, only for their own at their hosts, which is queued behind it. A packet that a queue
//! or a program drops costs nothing.
//!
//! A paused host finishes the packet that its processor works on, and stops there. A crashed one loses what has arrived and what has not left.

use std::collections::VecDeque;
use std::sync::Arc;

use rackweave_core::{
    DropReason, Header as _, HostId, Packet, PacketRef, PayloadStore as _, Rng, Span,
    SwitchProgram, Time,
};
use rackweave_switch::net::Consumed;

use super::World;
use super::host::{Host, HostState, RECEIVE_RING};
use crate::host::{Costs, HostConfig, HostModel, Processors, Sending};
use crate::model::{GroupNode as _, Model};

/// Linux' base slice for one processor, which grows with the logarithm of their number up to eight (`kernel/sched/fair.c`:
/// `sysctl_sched_base_slice`, 0.75 ms from 6.6 to 6.12, and `SCHED_TUNABLESCALING_LOG`). That a slice ends between two
/// batches is Rackweave's choice.
const BASE_SLICE: Span = Span::from_us(750);

/// The work for which a writer is woken: some 128 KiB at 0.4 ns a byte. The value is our choice.
const WRITE: Span = Span::from_us(50);

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It sleeps until something happens.
    Asleep,
    /// It sleeps until a time, and may be woken before.
    Pausing,
    /// It has been woken, and does not run yet.
    Waking,
    /// It waits for a processor.
    Waiting,
    /// It works on a packet that has arrived.
    Receiving,
    /// It works on a packet to be sent.
    Sending,
    /// It has nothing to do, and pays for going to sleep and being woken.
    Retiring,
}

#[derive(Clone, Debug)]
struct Task {
    stage: Stage,
    /// When its pending event is due.
    until: Time,
    /// Since when it has had its shared processor.
    since: Time,
    /// Packets of the current batch that are left, the present one included. 0 if a crash has discarded them.
    left: u32,
    /// Costs that the next packet pays too.
    debt: Span,
    /// Whether there may be something to send.
    wants_to_send: bool,
    /// When the link will have sent everything that was taken from the transports.
    link_free: Time,
    rng: Rng,
}

/// A packet on which the switch process works: the costs of receiving and of sending it, and where it goes; `None` if a program has
/// consumed it.
#[derive(Clone, Copy, Debug)]
struct SwitchWork {
    receive: Span,
    send: Span,
    to: Option<(HostId, PacketRef)>,
}

/// The tasks of all hosts. A host's receiving task has twice its number, and its sending task the next number; with
/// shared processors the former does both. The switch process follows.
#[derive(Debug)]
pub(super) struct Tasks {
    config: Arc<HostConfig>,
    /// The wake-up of the first task; the others follow.
    first_wake: u32,
    tasks: Vec<Task>,
    /// The packets of each host that have arrived; the first ones are being handled.
    rings: Vec<VecDeque<PacketRef>>,
    /// What waits for the switch process.
    switch_ring: VecDeque<SwitchWork>,
    /// When the switch process began its turn.
    switch_began: Time,
    /// Whether the switch process runs in place of an interrupted host.
    switch_interrupts: bool,
    /// Idle shared processors, running tasks, and waiting tasks.
    idle: u32,
    running: Vec<u32>,
    waiting: VecDeque<u32>,
    /// Whether the present change is due to a timer, for which the task is awake.
    is_awake: bool,
}

impl Tasks {
    pub(super) fn new(
        config: Arc<HostConfig>,
        hosts: u32,
        first_wake: u32,
        (seed, run): (u64, u64),
    ) -> Self {
        let task = |number| Task {
            stage: Stage::Asleep,
            until: Time::ZERO,
            since: Time::ZERO,
            left: 0,
            debt: Span::ZERO,
            wants_to_send: false,
            link_free: Time::ZERO,
            rng: Rng::stream(seed, run, number, "wake"),
        };
        let idle = match config.processors {
            Processors::PerDirection => 0,
            Processors::Shared(number) => number,
        };
        Self {
            first_wake,
            tasks: (0..u64::from(Self::count(hosts))).map(task).collect(),
            rings: vec![VecDeque::new(); hosts as usize],
            switch_ring: VecDeque::new(),
            switch_began: Time::ZERO,
            switch_interrupts: false,
            idle,
            running: Vec::new(),
            waiting: VecDeque::new(),
            is_awake: false,
            config,
        }
    }

    /// The number of tasks; each has a wake-up of the network.
    pub(super) const fn count(hosts: u32) -> u32 {
        2 * hosts + 1
    }

    /// The number of wake-ups of the network: those of tasks, and the one for packets that programs have consumed.
    pub(super) fn wakes(&self) -> u32 {
        self.tasks.len() as u32 + u32::from(self.config.switch.is_some())
    }

    /// The wake-up for packets that programs have consumed, which have a cost if a process emulates the switches.
    pub(super) fn consumed_wake(&self) -> Option<u32> {
        self.config.switch.map(|_| self.first_wake + self.tasks.len() as u32)
    }

    fn is_shared(&self) -> bool {
        matches!(self.config.processors, Processors::Shared(_))
    }

    const fn switch(&self) -> u32 {
        2 * self.rings.len() as u32
    }

    const fn receiver(host: HostId) -> u32 {
        2 * host.0
    }

    fn sender(&self, host: HostId) -> u32 {
        2 * host.0 + if self.is_shared() { 0 } else { 1 }
    }

    fn task(&mut self, number: u32) -> &mut Task {
        &mut self.tasks[number as usize]
    }

    fn receives(&self, number: u32) -> bool {
        let ring = self.rings.get(number as usize / 2);
        number.is_multiple_of(2) && ring.is_some_and(|ring| !ring.is_empty())
    }

    fn sends(&self, number: u32) -> bool {
        self.tasks[number as usize].wants_to_send
    }

    /// How many packets of its batch a task hands over when its present work ends: all of them in the kernel, whose sockets a system call
    /// empties before it acknowledges what it has read.
    fn handed_over_together(&self, number: u32) -> u32 {
        let left = self.tasks[number as usize].left;
        match self.config.model {
            HostModel::Kernel if number != self.switch() => left,
            _ => left.min(1),
        }
    }

    /// Pays for messages between an application and its transport.
    fn charge(&mut self, number: u32, cost: Span) {
        self.task(number).debt += cost;
    }

    /// Whether the task has had its processor for a slice while others wait for one.
    fn slice_is_over(&self, number: u32, now: Time) -> bool {
        let Processors::Shared(processors) = self.config.processors else { return false };
        let slice = BASE_SLICE * u64::from(1 + processors.clamp(1, 8).ilog2());
        number != self.switch()
            && !self.waiting.is_empty()
            && now >= self.tasks[number as usize].since + slice
    }
}

const fn host_of(task: u32) -> HostId {
    HostId(task / 2)
}

impl<M: Model> World<'_, M> {
    /// Handles a packet that has reached its host: at once, or when the host's processor has handled it and those
    /// before it.
    #[inline]
    pub(super) fn arrived(&mut self, host: HostId, packet: PacketRef) {
        if self.tasks.is_none() {
            return self.receive(host, packet);
        }
        self.wait_for_processor(host, packet);
    }

    #[inline(never)]
    fn wait_for_processor(&mut self, host: HostId, packet: PacketRef) {
        let Some(tasks) = &mut self.tasks else { return };
        let Some(process) = tasks.config.switch else { return self.join_ring(host, packet) };
        // The switch process has a socket for each host. That they are as long as the rings of hosts is our choice.
        if tasks.switch_ring.len() >= RECEIVE_RING * tasks.rings.len() {
            return self.net.discard(packet, DropReason::QueueFull);
        }
        let due = self.net.packet(packet);
        let is_made = M::Program::ACTIVE && due.instance() == Packet::<M::Header>::NODE_INSTANCE;
        let bytes = due.wire_bytes.into();
        let receive = if is_made { Span::ZERO } else { process.of_received(bytes, 0) };
        let send = process.of_sent(bytes);
        tasks.switch_ring.push_back(SwitchWork { receive, send, to: Some((host, packet)) });
        let switch = tasks.switch();
        self.rouse(switch);
    }

    /// Has the switch process work on the packets that programs have consumed. Their answers wait behind them, which limits their number.
    fn wait_for_consumed(&mut self) {
        while let Some(Consumed { wire_bytes, work }) = self.net.poll_consumed() {
            let Some(tasks) = &mut self.tasks else { return };
            let Some(process) = tasks.config.switch else { return };
            let receive = process.of_received(wire_bytes.into(), work);
            tasks.switch_ring.push_back(SwitchWork { receive, send: Span::ZERO, to: None });
            let switch = tasks.switch();
            self.rouse(switch);
        }
    }

    fn join_ring(&mut self, host: HostId, packet: PacketRef) {
        if self.tasks.as_ref().is_some_and(|tasks| tasks.config.model == HostModel::Kernel) {
            let arrived = self.net.packet(packet);
            if arrived.header.payload_bytes() == 0 {
                return self.receive(host, packet);
            }
            let (sender, bytes) = (arrived.src, arrived.wire_bytes);
            self.pay_for_sent(sender, bytes.into());
        }
        let Some(tasks) = &mut self.tasks else { return };
        let ring = &mut tasks.rings[host.0 as usize];
        match &self.hosts.all[host.0 as usize].state {
            HostState::Down => return self.net.discard(packet, DropReason::HostDown),
            HostState::Paused(_) if ring.len() >= RECEIVE_RING => {
                return self.net.discard(packet, DropReason::HostPaused);
            }
            HostState::Up if ring.len() >= RECEIVE_RING => {
                return self.net.discard(packet, DropReason::QueueFull);
            }
            _ => {}
        }
        ring.push_back(packet);
        self.rouse(Tasks::receiver(host));
    }

    /// Pays for data that the kernel has taken from a sender. The thread is woken for it when it has some of it to pay for, as a writer
    /// is when there is room in its socket.
    fn pay_for_sent(&mut self, host: HostId, wire_bytes: u32) {
        let Some(tasks) = &mut self.tasks else { return };
        let sender = tasks.sender(host);
        tasks.charge(sender, tasks.config.send.of_packet(wire_bytes, 0));
        if tasks.tasks[sender as usize].debt >= WRITE {
            self.rouse(sender);
        }
    }

    /// Pays for a message that an application passes to its transport, or is given by it.
    pub(super) fn charge_call(&mut self, host: HostId, is_sent: bool) {
        let Some(tasks) = &mut self.tasks else { return };
        let Costs { call, .. } = if is_sent { tasks.config.send } else { tasks.config.receive };
        let task = if is_sent { tasks.sender(host) } else { Tasks::receiver(host) };
        tasks.charge(task, call);
        if !is_sent && call > Span::ZERO {
            // A message that fails by a timer may find the receiving thread asleep.
            self.rouse(task);
        }
    }

    /// Must be called when a host may have something to send.
    #[inline]
    pub(super) fn request_to_send(&mut self, host: HostId) {
        if self.hosts.sending == Sending::InTurns {
            self.rouse_senders(host);
        }
    }

    /// Marks that the change of the host's state that follows is due to a timer, or that it is over.
    pub(super) fn on_time(&mut self, is_awake: bool) {
        if let Some(tasks) = &mut self.tasks {
            tasks.is_awake = is_awake;
        }
    }

    /// Pays for the work that a node has done for what it is going to send. That all of what a unit costs a sender is paid then, and none
    /// of it when a packet carries it, is our simplification: preparation, such as sorting, is most of it.
    fn pay_for_prepared(&mut self, host: HostId) {
        let Some((node, _)) = self.hosts.all[host.0 as usize].node() else { return };
        let work = self.hosts.nodes.node(node).poll_prepared_work();
        if work > 0
            && let Some(tasks) = &mut self.tasks
        {
            let sender = tasks.sender(host);
            tasks.charge(sender, tasks.config.send.work * u64::from(work));
        }
    }

    #[inline(never)]
    fn rouse_senders(&mut self, host: HostId) {
        self.pay_for_prepared(host);
        // A packet that a node receives at one port may enable another port to send.
        for port in 0..self.hosts.ports(host) {
            let host = self.hosts.at_port(host, port);
            let Some(tasks) = &mut self.tasks else { return };
            let sender = tasks.sender(host);
            tasks.task(sender).wants_to_send = true;
            self.rouse(sender);
        }
    }

    /// Whether this is the switch process, or a task of a host that neither is paused nor has crashed.
    fn is_runnable(&self, number: u32) -> bool {
        self.hosts.all.get(number as usize / 2).is_none_or(Host::is_up)
    }

    /// Wakes the tasks of a host that has been paused.
    pub(super) fn rouse_resumed(&mut self, host: HostId) {
        if self.tasks.as_ref().is_some_and(|tasks| tasks.receives(Tasks::receiver(host))) {
            self.rouse(Tasks::receiver(host));
        }
    }

    /// Discards what waits for the processors of a host that has crashed, in both directions.
    pub(super) fn clear_tasks(&mut self, host: HostId) {
        let Some(tasks) = &mut self.tasks else { return };
        for number in [Tasks::receiver(host), tasks.sender(host)] {
            let task = tasks.task(number);
            (task.left, task.debt, task.wants_to_send) = (0, Span::ZERO, false);
            task.link_free = Time::ZERO;
        }
        for packet in std::mem::take(&mut tasks.rings[host.0 as usize]) {
            self.net.discard(packet, DropReason::HostDown);
        }
        if let Some(outbox) = &mut self.hosts.outbox {
            let Outbox { staged, ready } = std::mem::take(&mut outbox[host.0 as usize]);
            for packet in staged.iter().chain(&ready) {
                self.net.payloads().release(packet);
            }
        }
    }

    /// Wakes a task that sleeps.
    fn rouse(&mut self, number: u32) {
        let now = self.net.now();
        if !self.is_runnable(number) {
            return;
        }
        let Some(tasks) = &mut self.tasks else { return };
        let (is_switch, is_awake) = (number == tasks.switch(), tasks.is_awake);
        let receives = tasks.receives(number);
        let config = Arc::clone(&tasks.config);
        let wake = if is_switch { &config.switch_wake } else { &config.wake };
        let task = tasks.task(number);
        match task.stage {
            Stage::Asleep => {}
            // The switch process sleeps for a window, whatever happens. A sender whose link is occupied is woken by
            // what arrives.
            Stage::Pausing if !is_switch && receives => {}
            _ => return,
        }
        let delay = if is_awake { Span::ZERO } else { wake.draw(&mut task.rng) };
        task.stage = Stage::Waking;
        task.until = now + delay;
        let is_shared = matches!(config.processors, Processors::Shared(_));
        let is_in_turns = config.sending() == Sending::InTurns;
        if delay == Span::ZERO && receives && !is_in_turns && !is_shared {
            // Nothing else can come of it, so that no event is needed.
            return self.start_turn(number);
        }
        self.schedule_task(number);
    }

    fn schedule_task(&mut self, number: u32) {
        let Some(tasks) = &self.tasks else { return };
        self.net.wake_at(tasks.tasks[number as usize].until, tasks.first_wake + number);
    }

    /// Handles the wake-up of a task.
    pub(super) fn on_task(&mut self, wake: u32) {
        let now = self.net.now();
        let Some(tasks) = &mut self.tasks else { return };
        let number = wake - tasks.first_wake;
        if number as usize == tasks.tasks.len() {
            return self.wait_for_consumed();
        }
        let task = tasks.task(number);
        if task.until != now {
            return;
        }
        match task.stage {
            Stage::Asleep | Stage::Waiting => {}
            Stage::Pausing | Stage::Waking => self.acquire(number),
            Stage::Receiving => self.finish_received(number),
            Stage::Sending => self.finish_sent(number),
            Stage::Retiring => self.finish_turn(number),
        }
    }

    /// Gives the task a processor, or has it wait for one.
    fn acquire(&mut self, number: u32) {
        let Some(tasks) = &mut self.tasks else { return };
        if tasks.is_shared() {
            if tasks.idle > 0 {
                tasks.idle -= 1;
                self.occupy(number);
            } else if number == tasks.switch() {
                return self.interrupt();
            } else {
                tasks.task(number).stage = Stage::Waiting;
                return tasks.waiting.push_back(number);
            }
        }
        self.start_turn(number);
    }

    /// Gives the task a shared processor.
    fn occupy(&mut self, number: u32) {
        let now = self.net.now();
        let Some(tasks) = &mut self.tasks else { return };
        tasks.running.push(number);
        tasks.task(number).since = now;
    }

    /// The switch process, which has a real-time priority, runs in place of the host that began first.
    fn interrupt(&mut self) {
        let Some(tasks) = &mut self.tasks else { return };
        let Some(switch) = tasks.config.switch else { return };
        let packets = tasks.switch_ring.iter().map(|work| work.receive + work.send);
        let call = if tasks.switch_ring.is_empty() { Span::ZERO } else { switch.costs.system_call };
        let turn = packets.fold(call + switch.wake_cost, |sum, cost| sum + cost);
        tasks.switch_interrupts = true;
        if let Some(victim) = tasks.running.first().copied() {
            tasks.task(victim).until = tasks.task(victim).until + turn;
            self.schedule_task(victim);
        }
        let Some(tasks) = &mut self.tasks else { return };
        let switch = tasks.switch();
        self.start_turn(switch);
    }

    /// Begins a turn on a processor.
    fn start_turn(&mut self, number: u32) {
        let now = self.net.now();
        let Some(tasks) = &mut self.tasks else { return };
        if number == tasks.switch() {
            let left = tasks.switch_ring.len() as u32;
            let Some(switch) = tasks.config.switch.filter(|_| left > 0) else {
                // Nothing has come during the window, so that no other window follows.
                return self.end_turn(number);
            };
            tasks.switch_began = now;
            let received = tasks.switch_ring.iter().map(|work| work.receive);
            let before_sending = received.fold(switch.costs.system_call, |sum, cost| sum + cost);
            let task = tasks.task(number);
            (task.stage, task.left, task.debt) = (Stage::Receiving, left, before_sending);
            return self.work_on_next(number);
        }
        self.continue_turn(number, true);
    }

    /// Continues with what there is to do; `receive_first` if both directions wait.
    fn continue_turn(&mut self, number: u32, receive_first: bool) {
        let now = self.net.now();
        if !self.is_runnable(number) {
            return self.end_turn(number);
        }
        let Some(tasks) = &mut self.tasks else { return };
        let (receives, sends) = (tasks.receives(number), tasks.sends(number));
        if (receives || sends) && tasks.slice_is_over(number, now) {
            tasks.task(number).stage = Stage::Waiting;
            tasks.waiting.push_back(number);
            return self.release(number);
        }
        if receives && (receive_first || !sends) {
            self.start_receiving(number);
        } else if !sends || !self.start_sending(number) {
            let Some(tasks) = &self.tasks else { return };
            if tasks.receives(number) {
                self.start_receiving(number);
            } else {
                self.end_turn(number);
            }
        }
    }

    fn start_receiving(&mut self, number: u32) {
        let Some(tasks) = &mut self.tasks else { return };
        let waiting = tasks.rings[number as usize / 2].len() as u32;
        let (batch, system_call) = (tasks.config.receive_batch, tasks.config.receive.system_call);
        let task = tasks.task(number);
        (task.stage, task.left) = (Stage::Receiving, waiting.min(batch));
        task.debt += system_call;
        self.work_on_next(number);
    }

    /// Schedules the end of the work on the first packet of the batch, or on all of a batch that is handed over together.
    fn work_on_next(&mut self, number: u32) {
        let now = self.net.now();
        let Some(tasks) = &mut self.tasks else { return };
        let cost = match (tasks.task(number).stage, tasks.config.switch) {
            (Stage::Sending, _) => {
                let outbox = self.hosts.outbox.as_ref();
                let staged =
                    outbox.and_then(|boxes| boxes[host_of(number).0 as usize].staged.front());
                let bytes = staged.map_or(0, |packet| packet.wire_bytes);
                // Its work was paid for when it was done.
                tasks.config.send.of_packet(u32::from(bytes), 0)
            }
            (_, Some(_)) if number == tasks.switch() => {
                tasks.switch_ring.front().map_or(Span::ZERO, |work| work.send)
            }
            _ => {
                let ring = &tasks.rings[number as usize / 2];
                let together = tasks.handed_over_together(number) as usize;
                let packets = ring.iter().take(together).map(|packet| self.net.packet(*packet));
                let costs = packets.map(|packet| {
                    let bytes = u32::from(packet.wire_bytes);
                    tasks.config.receive.of_packet(bytes, packet.header.work())
                });
                costs.fold(Span::ZERO, |sum, cost| sum + cost)
            }
        };
        let task = tasks.task(number);
        task.until = now + cost + std::mem::take(&mut task.debt);
        self.schedule_task(number);
    }

    /// Hands over the packets on which the work has ended, and goes on.
    fn finish_received(&mut self, number: u32) {
        let is_runnable = self.is_runnable(number);
        let Some(tasks) = &mut self.tasks else { return };
        let is_switch = number == tasks.switch();
        let together = tasks.handed_over_together(number);
        let task = tasks.task(number);
        task.left = task.left.saturating_sub(together.max(1));
        let left = task.left;
        if is_switch {
            let done = tasks.switch_ring.pop_front().and_then(|work| work.to);
            if let Some((host, packet)) = done {
                self.join_ring(host, packet);
            }
        } else {
            self.take_from_ring(host_of(number), together);
        }
        if left > 0 && is_runnable {
            self.work_on_next(number);
        } else if is_switch {
            self.end_turn(number);
        } else {
            self.continue_turn(number, false);
        }
    }

    /// Hands over the first packets of a host's ring.
    fn take_from_ring(&mut self, host: HostId, packets: u32) {
        let next = |world: &mut Self| {
            let ring = world.tasks.as_mut().map(|tasks| &mut tasks.rings[host.0 as usize]);
            ring.and_then(VecDeque::pop_front)
        };
        if packets == 1 {
            if let Some(packet) = next(self) {
                self.receive(host, packet);
            }
        } else if packets > 1 {
            self.flush(host);
            for _ in 0..packets {
                if let Some(packet) = next(self) {
                    self.hand_over(host, packet);
                }
            }
            self.changed(host);
        }
    }

    /// Takes packets from the host's transports, as far ahead of the link as is allowed; false if there are none.
    fn start_sending(&mut self, number: u32) -> bool {
        let now = self.net.now();
        let host = host_of(number);
        let Some(tasks) = &mut self.tasks else { return false };
        let staged = self.hosts.outbox.as_ref().map(|boxes| &boxes[host.0 as usize].staged);
        if staged.is_some_and(|staged| !staged.is_empty()) {
            // A pause has interrupted the batch.
            tasks.task(number).stage = Stage::Sending;
            self.work_on_next(number);
            return true;
        }
        let config = Arc::clone(&tasks.config);
        let rate = self.net.fabric().host_rate();
        let mut link_free = tasks.task(number).link_free;
        let mut wants = true;
        let mut count = 0;
        while count < config.send_batch && link_free <= now + config.send_ahead {
            let packet = self.hosts.poll_machines(host, now, self.net.payloads());
            let Some(packet) = packet else {
                wants = false;
                break;
            };
            link_free = link_free.max(now) + rate.span_of(u64::from(packet.wire_bytes));
            if let Some(outbox) = &mut self.hosts.outbox {
                outbox[host.0 as usize].staged.push_back(packet);
            }
            count += 1;
        }
        let task = tasks.task(number);
        (task.link_free, task.wants_to_send) = (link_free, wants);
        if count > 0 {
            task.stage = Stage::Sending;
            task.debt += config.send.system_call;
            // Until the work is scheduled below, no other event is valid.
            task.until = Time::MAX;
        }
        // Polling may have produced events, and changes the time of the next timer.
        self.after_poll(host);
        if count > 0 {
            self.work_on_next(number);
        }
        count > 0
    }

    /// Passes the packet on which the work has ended to the NIC, and goes on.
    fn finish_sent(&mut self, number: u32) {
        let host = host_of(number);
        let is_runnable = self.is_runnable(number);
        self.flush(host);
        let mut more = false;
        if let Some(outbox) = &mut self.hosts.outbox {
            let outbox = &mut outbox[host.0 as usize];
            outbox.ready.extend(outbox.staged.pop_front());
            more = !outbox.staged.is_empty();
        }
        self.net.wake(&mut self.hosts, host);
        if more && is_runnable {
            self.work_on_next(number);
        } else {
            self.continue_turn(number, true);
        }
    }

    /// Ends a turn, after what calls have cost since its last packet, and the cost of switching threads. The latter is paid here for the next wake-up too, because what of it delays
    /// that one is in [`HostConfig::wake`] already.
    fn end_turn(&mut self, number: u32) {
        let now = self.net.now();
        let Some(tasks) = &mut self.tasks else { return };
        let cost = match tasks.config.switch {
            Some(switch) if number == tasks.switch() => switch.wake_cost,
            _ => tasks.config.wake_cost,
        };
        let cost = cost + std::mem::take(&mut tasks.task(number).debt);
        if cost == Span::ZERO {
            return self.sleep(number);
        }
        let task = tasks.task(number);
        (task.stage, task.until) = (Stage::Retiring, now + cost);
        self.schedule_task(number);
    }

    /// Lets a task sleep, unless it has something to do again.
    fn finish_turn(&mut self, number: u32) {
        let now = self.net.now();
        let is_runnable = self.is_runnable(number);
        let Some(tasks) = &mut self.tasks else { return };
        let may_send = tasks.sends(number)
            && tasks.tasks[number as usize].link_free <= now + tasks.config.send_ahead;
        if number != tasks.switch() && is_runnable && (tasks.receives(number) || may_send) {
            return self.start_turn(number);
        }
        self.sleep(number);
    }

    /// The task sleeps, and the processor is free for another one.
    fn sleep(&mut self, number: u32) {
        let now = self.net.now();
        let is_runnable = self.is_runnable(number);
        let Some(tasks) = &mut self.tasks else { return };
        let config = Arc::clone(&tasks.config);
        let is_switch = number == tasks.switch();
        let resume = match config.switch {
            Some(switch) if is_switch => {
                let window = tasks.switch_began + switch.window;
                (!tasks.switch_ring.is_empty() || window > now).then_some(window)
            }
            // The link holds half of the time by which the host is ahead, as in `linux::Endpoint`.
            _ => (is_runnable && tasks.sends(number)).then(|| {
                let half = Span::from_ticks(config.send_ahead.ticks() / 2);
                tasks.task(number).link_free.saturating_sub(half)
            }),
        };
        let task = tasks.task(number);
        match resume {
            Some(at) => {
                task.stage = Stage::Pausing;
                task.until = at.max(now) + config.timer_grain;
            }
            None => task.stage = Stage::Asleep,
        }
        if resume.is_some() {
            self.schedule_task(number);
        }
        self.release(number);
    }

    /// Frees the processor of a task whose turn has ended.
    fn release(&mut self, number: u32) {
        let Some(tasks) = &mut self.tasks else { return };
        if !tasks.is_shared() {
            return;
        }
        if number == tasks.switch() && std::mem::take(&mut tasks.switch_interrupts) {
            return;
        }
        tasks.running.retain(|running| *running != number);
        match tasks.waiting.pop_front() {
            Some(next) => {
                self.occupy(next);
                self.start_turn(next);
            }
            None => tasks.idle += 1,
        }
    }
}

/// Packets on their way from a host's transports to its NIC.
#[derive(Clone, Debug)]
pub(super) struct Outbox<H> {
    /// Those on which a processor works.
    staged: VecDeque<Packet<H>>,
    /// The packets that the NIC may send.
    pub(super) ready: VecDeque<Packet<H>>,
}

impl<H> Default for Outbox<H> {
    fn default() -> Self {
        Self { staged: VecDeque::new(), ready: VecDeque::new() }
    }
}
