//! The control plane of P4-ORDC, an optical rackless data center with in-network aggregation: which server is below which
//! `ToR`, who has the programmable `ToR`, and when. Everything is a pure function of its arguments: no I/O, no clock, no
//! randomness of its own, and no simulator, so that a simulation, a controller and `rackweave reduce plan` use the same
//! functions.
//!
//! ```
//! use rackweave_core::{Rng, Span};
//! use rackweave_rackless::cost::{Reconfiguration, Scope};
//! use rackweave_rackless::demand::{JobId, Period, Upload};
//! use rackweave_rackless::fabric::{Architecture, Fabric};
//! use rackweave_rackless::plan::{Algorithm, Options, plan};
//! use rackweave_rackless::pod::Pod;
//!
//! // Two groups of servers upload by turns; the first is below the programmable ToR already.
//! let upload = |job, master: u32| {
//!     let workers = (1..4).map(|worker| (master + worker, 100_000_000)).collect();
//!     let upload = Upload::new(JobId(job), master, workers, 180_000_000)?;
//!     Period::new(8, vec![], vec![upload], vec![])
//! };
//! let periods = [upload(1, 0)?, upload(2, 4)?];
//! let fabric = Fabric::new(Pod::paper(), Architecture::P4Ordc);
//! let reconfiguration = Reconfiguration { delay: Span::from_ms(25), scope: Scope::All };
//! let options = Options::new(Algorithm::Exact, reconfiguration);
//! let plan = plan(&fabric, &periods, &options, &mut Rng::stream(1, 0, 0, "plan"))?;
//! // The second group takes the first one's place, and three of the five parts of its upload reach the master.
//! assert_eq!(plan.reconfigurations(), 1);
//! assert_eq!(plan.steps[1].cost.absorbed, 120_000_000);
//! assert_eq!(plan.total, Span::from_ms(144 + 25 + 144));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`pod`]: servers and `ToR`s; [`config`]: which server is below which `ToR`; [`fabric`]: the architectures.
//! - [`demand`]: the matrix server x server x period, uploads and broadcasts; [`jobs`], [`ted`]: where it comes from;
//!   [`trace`]: its form as CSV.
//! - [`cost`]: the bottleneck bound of a period; [`routing`]: which uplink each transfer takes.
//! - [`plan`](mod@plan): topology engineering; [`inc`]: who has the programmable `ToR` when.
//! - [`controller`]: the control plane of a running or simulated pod: it registers jobs, plans, grants, and commands switches.
//! - [`instances`]: random demand, to compare plans with.

pub mod config;
pub mod controller;
pub mod cost;
pub mod demand;
pub mod fabric;
pub mod inc;
pub mod instances;
pub mod jobs;
pub mod plan;
pub mod pod;
pub mod podfile;
pub mod routing;
pub mod ted;
pub mod trace;
