//! The bodies of requests and answers of masters and operators. All are JSON.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/jobs` | [`Register`] | [`Job`] |
//! | `GET /v1/jobs`, `?name=NAME` | | list of [`Job`] |
//! | `GET /v1/jobs/N`, `?wait=S` | | [`Job`]; waits up to S seconds, at most 10, for a grant |
//! | `POST /v1/jobs/N/ready` | [`Known`] | [`Job`] |
//! | `POST /v1/jobs/N/phase` | [`Reached`] | [`Job`] |
//! | `DELETE /v1/jobs/N` | | nothing |
//! | `GET /v1/status`, `/v1/plan`, `/v1/circuits` | | what the page shows |
//!
//! All but the page need `Authorization: Bearer TOKEN`, and are whole within ten seconds. A refusal is [`Refused`]. Each request can be repeated.

use rackweave_rackless::controller::record::Measured;
use rackweave_rackless::controller::{Declared, Entry, Phase};
use serde::{Deserialize, Serialize};

/// A job registers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// A random number: a repetition with the same one is the same job.
    pub nonce: u64,
    /// What it declares.
    pub job: Declared,
}

/// What has become known of a job. What is missing remains as declared.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Known {
    /// The servers of the workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<u32>>,
    /// The bytes that each worker uploads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upload: Option<Vec<u64>>,
    /// The bytes that are left of them when they are added up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinct: Option<u64>,
}

impl Known {
    /// Writes it into what was declared.
    pub(crate) fn put_into(self, declared: &mut Declared) {
        if let Some(workers) = self.workers {
            // Sizes are by worker.
            if workers.len() != declared.workers.len() {
                (declared.upload, declared.distinct) = (None, None);
                declared.shuffle = Vec::new();
            }
            declared.workers = workers;
        }
        declared.upload = self.upload.or(declared.upload.take());
        declared.distinct = self.distinct.or(declared.distinct.take());
    }
}

/// A job has come to a phase.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reached {
    /// The phase.
    pub phase: Phase,
    /// What has become known meanwhile.
    #[serde(default)]
    pub known: Known,
}

/// What a job may upload with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// What `reduce master --switch` calls the switch; empty: none.
    pub switch: String,
    /// The slots to ask it for.
    pub slots: u32,
}

/// A job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number.
    pub job: u16,
    /// Whose it is.
    pub tenant: String,
    /// What it has declared.
    pub declared: Declared,
    /// How far it has come.
    pub phase: Phase,
    /// What it may upload with, once it may.
    pub grant: Option<Granted>,
    /// How long its phases took.
    pub measured: Measured,
}

impl Job {
    pub(crate) fn of(entry: &Entry) -> Self {
        let grant = entry.grant();
        Self {
            job: entry.id.0,
            tenant: entry.tenant().to_owned(),
            declared: entry.declared().clone(),
            phase: entry.phase(),
            grant: grant.map(|it| Granted { switch: it.switch.clone(), slots: it.slots }),
            measured: *entry.measured(),
        }
    }

    /// What other tenants see of it: without its name and sizes.
    pub(crate) fn unnamed(entry: &Entry) -> Self {
        let Declared { master, workers, .. } = entry.declared().clone();
        let declared = Declared { master, workers, ..Declared::default() };
        Self { tenant: String::new(), declared, measured: Measured::default(), ..Self::of(entry) }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// A sentence.
    pub error: String,
}
