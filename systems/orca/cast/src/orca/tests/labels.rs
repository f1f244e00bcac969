//! An insider against receivers that forward data to others: agents of a rack with label switches, and relays. All engines run in this
//! thread, each with sockets in a namespace of its own, around a user-space switch. Skipped without privileges.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rackweave_linux::netns::{self, Network, Nic, TcpSettings, switch_end};
use rackweave_linux::switch::{Control, Edge, Switch, SwitchConfig};
use rackweave_orca::controller::ControllerEvent;
use rackweave_orca::label::Layout;
use rackweave_orca::system::Orca;
use rackweave_switch::Fabric;
use rackweave_switch::config::{FabricConfig, SwitchConfig as OneSwitch};
use rackweave_wire::orca::{self, Check, Data, Label, Labelled};

use super::insider::seal_ahead;
use super::*;

/// Hosts 0 to 2 form one rack, hosts 3 to 5 the other.
const HOSTS: u32 = 6;
const SENDER: usize = 0;
const CONTROLLER: HostId = HostId(1);
/// The receivers. The first one is the agent, or the first relay, and the last one forges.
const RECEIVERS: [u32; 3] = [3, 4, 5];
const VICTIM: usize = 3;
const INSIDER: usize = 5;

const LENGTH: usize = 4_000_000;
const LINK: Rate = Rate(100_000_000);

fn fabric() -> FabricConfig {
    FabricConfig::leaf_spine(2, 3, 1, LINK)
        .with_core_link(Rate::from_gbps(1))
        .with_link_delay(Span::from_us(1))
        .without_host_delays()
        .with_switch(OneSwitch::default().with_buffer(1_000_000).without_marking())
}

/// The namespaces and the switch; both end on drop.
struct Spaces {
    network: Network,
    control: Arc<Control>,
    switch: Option<JoinHandle<()>>,
}

impl Drop for Spaces {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Relaxed);
        if let Some(switch) = self.switch.take() {
            // A switch that has failed was noticed by what it did not forward.
            let _ = switch.join();
        }
        let _ = netns::remove(&format!("{}-", self.network.prefix));
    }
}

impl Spaces {
    fn make(test: &str) -> Option<Self> {
        rackweave_testing::needs!(NetAdmin, None);
        let prefix = format!("rwc-{}-{test}", std::process::id());
        let (nic, tcp) = (Nic::Fifo, TcpSettings::default());
        let network = Network { prefix, hosts: HOSTS, link: LINK, nic, tcp };
        let control = Arc::new(Control::default());
        let mut spaces = Self { network, control, switch: None };
        spaces.network.make().unwrap();
        let edges = (0..HOSTS).map(|host| Edge::Interface { name: switch_end(HostId(host)) });
        let system = Orca { controller: Some(CONTROLLER), key: Some(keys(SECRET).0) };
        let config = SwitchConfig::new(fabric(), edges.collect()).with_system(system);
        let (space, control) = (spaces.network.switch(), Arc::clone(&spaces.control));
        spaces.switch = Some(std::thread::spawn(move || {
            netns::enter(&space).unwrap();
            Switch::new(config).unwrap().run(&control).unwrap();
        }));
        Some(spaces)
    }

    /// Starts the engine of a host.
    fn engine(&self, host: u32, tor: bool, folder: &Path) -> Engine {
        let me = HostId(host);
        let layout = Arc::new(Layout::new(&Fabric::new(&fabric()).unwrap()).unwrap());
        let address = |host: u32| SocketAddr::from(([10, 0, 0, host as u8], orca::PORT));
        let fabric = FabricPlace {
            me,
            layout,
            hosts: (0..HOSTS).map(|host| (HostId(host), address(host))).collect(),
            controller: tor.then_some(CONTROLLER).filter(|it| *it != me),
            tor,
            // Only one host of the receivers' rack is an agent.
            heartbeat: (tor && host as usize == VICTIM).then_some(Span::from_ms(40)),
            control: (tor && me == CONTROLLER).then_some(Span::from_secs(5)),
        };
        let mut config = EngineConfig::new(address(host));
        config.bind.set_ip(Ipv4Addr::UNSPECIFIED.into());
        (config.in_group, config.fabric) = (true, Some(fabric));
        config.secret = Some(SECRET.to_vec());
        config.admission.everyone = true;
        config.flow.max_rate = Some(Rate(40_000_000));
        // All hosts share this thread, which may wait for a processor.
        config.flow.patience = Span::from_secs(3600);
        let folder = FolderConfig { folder: folder.to_owned(), ..FolderConfig::default() };
        let accept: Accept = Box::new(move |offer| {
            let (config, stream) = (folder.clone(), offer.stream);
            Decision::Accept(Box::new(move |_| {
                Folder::new(config, stream).map(|folder| Box::new(folder) as Box<dyn Sink>)
            }))
        });
        let space = self.network.host(me);
        let start = move || {
            netns::enter(&space).unwrap();
            Engine::new(config, Some(accept)).unwrap()
        };
        std::thread::spawn(start).join().unwrap()
    }
}

/// The engines of all hosts, and what has happened.
struct Scene {
    engines: Vec<Engine>,
    folders: Vec<tempfile::TempDir>,
    session: Session,
    view: Option<SendView>,
    received: Vec<HostId>,
    detached: Vec<HostId>,
    agent: Option<HostId>,
    // After the engines, whose sockets are in its namespaces.
    _spaces: Spaces,
}

impl Scene {
    fn new(test: &str, spread: Spread) -> Option<Self> {
        let spaces = Spaces::make(test)?;
        let folders: Vec<_> = (0..HOSTS).map(|_| tempfile::tempdir().unwrap()).collect();
        let tor = spread == Spread::Labels;
        let engines =
            (0..HOSTS).zip(&folders).map(|(host, it)| spaces.engine(host, tor, it.path()));
        let (view, received, detached, agent) = (None, Vec::new(), Vec::new(), None);
        let mut scene = Self {
            engines: engines.collect(),
            session: Session(0),
            view,
            received,
            detached,
            agent,
            folders,
            _spaces: spaces,
        };
        if tor {
            scene.run("the rack has an agent", |scene| scene.agent.is_some());
        }
        let path = file(scene.folders[SENDER].path(), "x", LENGTH);
        let files = Box::new(Files::new(&[path]).unwrap());
        let sender = &mut scene.engines[SENDER];
        let flow = sender.config.flow;
        scene.session = sender.open(files, &RECEIVERS.map(HostId), spread, flow).unwrap();
        Some(scene)
    }

    fn run(&mut self, what: &str, until: impl Fn(&Self) -> bool) {
        let deadline = self.engines[0].clock().now() + TIMEOUT * 2;
        while !until(self) {
            for (host, engine) in self.engines.iter_mut().enumerate() {
                engine.turn().unwrap();
                while let Some(event) = engine.poll_event() {
                    match event {
                        EngineEvent::Sent { view, .. } => self.view = Some(view),
                        EngineEvent::Received { .. } => self.received.push(HostId(host as u32)),
                        EngineEvent::Sender(_, SenderEvent::Detached { host }) => {
                            self.detached.push(host);
                        }
                        EngineEvent::Control(ControllerEvent::Promoted { rack: 1, agent }) => {
                            self.agent = agent;
                        }
                        EngineEvent::ReceiveFailed { reason, error, .. } => {
                            panic!("h{host}: {reason:?} {error:?}")
                        }
                        _ => {}
                    }
                }
            }
            let now = self.engines[0].clock().now();
            let receivers = self.engines[SENDER].view(self.session).map(|view| view.receivers);
            assert!(now < deadline, "{what}: {receivers:?}");
            // The switch's thread needs a processor too.
            self.engines[0].wait(Some(now + Span::from_us(200))).unwrap();
        }
    }

    fn readable(&self, host: usize) -> u64 {
        self.engines[host].incoming.get(&self.session).map_or(0, |incoming| incoming.readable)
    }

    fn has_own_key(&self, host: u32) -> bool {
        let sending = self.engines[SENDER].sending.get(&self.session);
        sending.is_some_and(|it| it.own_sealers.contains_key(&HostId(host)))
    }

    fn relayed(&self, host: usize) -> u64 {
        self.engines[host].host.counters().relayed
    }

    /// The insider sends wrong bytes of the stream to the victim, sealed with the key of the session's data.
    fn forge(&mut self, labelled: Labelled) {
        let sealer = self.engines[SENDER].sending[&self.session].sealer.as_ref().unwrap();
        let mut seal = seal_ahead(sealer, 100);
        let data = Data {
            labelled,
            label: Label(0),
            session: self.session,
            offset: self.readable(VICTIM) + 200_000,
            len: 900,
            repair: false,
            end: false,
            parity: None,
        };
        let mut sealed = vec![0; 900];
        let (counter, tag) = seal.seal(orca::associated(&data).as_ref(), &mut sealed).unwrap();
        let insider = &mut self.engines[INSIDER];
        let mut packet = Vec::new();
        orca::encode_relayed(&data, insider.words, Check::Sealed { counter, tag }, &mut packet);
        packet.extend_from_slice(&sealed);
        let to = insider.address(HostId(VICTIM as u32)).unwrap();
        insider.reply(to.into(), &packet);
    }

    /// All receivers must have the file, and nothing else.
    fn ends_well(&mut self) {
        self.run("all receivers have the file", |scene| {
            scene.view.is_some() && scene.received.len() == RECEIVERS.len()
        });
        assert_eq!(self.view.as_ref().map(completed), Some(RECEIVERS.len()));
        for host in RECEIVERS {
            let folder = self.folders[host as usize].path();
            assert!(std::fs::read(folder.join("x")).unwrap() == content(LENGTH), "h{host}");
            assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1);
        }
    }
}

/// The rack's agent is a receiver too, and the insider makes it ask for a key of its own. It cannot open the data of the others from then
/// on, and must forward it nevertheless: they get everything by labels.
#[test]
fn an_agent_with_a_key_of_its_own_forwards_what_it_cannot_open() {
    let Some(mut scene) = Scene::new("labels", Spread::Labels) else { return };
    assert_eq!(scene.agent, Some(HostId(VICTIM as u32)));
    scene.run("data arrives", |scene| scene.readable(VICTIM) > 100_000);
    scene.forge(Labelled::Host);
    scene.run("the victim has a key of its own", |scene| scene.has_own_key(VICTIM as u32));
    let (relayed, at) = (scene.relayed(VICTIM), scene.readable(4));
    assert!(relayed > 50 && at < LENGTH as u64 * 2 / 3, "{relayed} {at}");
    scene.ends_well();
    // What was left of the file when the victim was detached, at the most 1450 bytes in a packet.
    let least = (LENGTH as u64 - at) / 1450;
    let more = scene.relayed(VICTIM) - relayed;
    assert!(more + 200 > least, "{more} {least}");
    assert!(!scene.has_own_key(4) && !scene.detached.contains(&HostId(4)), "{:?}", scene.detached);
    // One copy for the rack, and at the most one for the victim.
    let sent = scene.engines[SENDER].stats().sent_bytes;
    assert!(sent < LENGTH as u64 * 5 / 2, "{sent}");
}

/// Forged data goes from relay to relay: each finds it, and all have the sender's bytes in the end.
#[test]
fn forged_data_that_relays_have_passed_on_is_found_by_each() {
    for labelled in [Labelled::Host, Labelled::Pilot] {
        let Some(mut scene) = Scene::new("relays", Spread::Relay) else { return };
        scene.run("data arrives", |scene| scene.readable(4) > 100_000);
        assert!(scene.relayed(VICTIM) > 50 && scene.relayed(4) > 50);
        scene.forge(labelled);
        scene.ends_well();
        let forged = RECEIVERS.map(|host| scene.engines[host as usize].stats().forged);
        // The data that the insider labels for a relay goes on to the next ones; the last is the insider.
        let found = if labelled == Labelled::Pilot { [1, 1, 1] } else { [1, 0, 0] };
        assert_eq!(forged, found);
    }
}
