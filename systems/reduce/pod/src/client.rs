//! Requests to a controller.

use std::time::Duration;

use rackweave_core::visible;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Response;

use crate::api::{Job, Known, Reached, Refused, Register};
use rackweave_rackless::controller::{Declared, Phase};

/// How long a request may take. One for a grant waits ten seconds by itself.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest answer.
const LONGEST: u64 = 64 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The controller cannot be reached, or what answers is none.
    #[error("cannot reach the pod's controller: {0}")]
    Unreachable(Box<ureq::Error>),
    /// It refuses.
    #[error("the pod's controller refuses: {why}")]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// Its sentence.
        why: String,
    },
}

impl ClientError {
    /// Whether it may answer later.
    #[must_use]
    pub const fn is_passing(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused { status, .. } => matches!(*status, 429 | 500..),
        }
    }
}

/// A tenant's access to a controller.
#[derive(Clone)]
pub struct Client {
    url: String,
    token: Option<String>,
    agent: Agent,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Client {
    /// A client of the controller at a URL such as `http://192.0.2.1:6790`.
    #[must_use]
    pub fn new(url: &str, token: Option<String>) -> Self {
        let config = Agent::config_builder()
            .timeout_global(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .build();
        let url = url.trim_end_matches('/').to_owned();
        Self { url, token, agent: config.into() }
    }

    fn answer<T: DeserializeOwned>(
        result: Result<Response<ureq::Body>, ureq::Error>,
    ) -> Result<T, ClientError> {
        let unreachable = |error| ClientError::Unreachable(Box::new(error));
        let mut response = result.map_err(unreachable)?;
        let status = response.status();
        let text = response.body_mut().with_config().limit(LONGEST).read_to_string();
        let text = text.map_err(unreachable)?;
        if !status.is_success() {
            let why = serde_json::from_str::<Refused>(&text).map_or(text, |it| it.error);
            let why = visible(why.trim_end());
            return Err(ClientError::Refused { status: status.as_u16(), why });
        }
        let text = if text.is_empty() { "null" } else { &text };
        serde_json::from_str(text).map_err(|error| ClientError::Refused {
            status: status.as_u16(),
            why: format!("its answer is not understood: {error}"),
        })
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Asks for something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        let mut request = self.agent.get(self.path(path));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Self::answer(request.call())
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let mut request = self.agent.post(self.path(path));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Self::answer(request.send_json(body))
    }

    /// Registers a job.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn register(&self, nonce: u64, job: &Declared) -> Result<Job, ClientError> {
        self.post("/v1/jobs", &Register { nonce, job: job.clone() })
    }

    /// The workers of a job are ready to upload.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn ready(&self, job: u16, known: &Known) -> Result<Job, ClientError> {
        self.post(&format!("/v1/jobs/{job}/ready"), known)
    }

    /// A job has come to a phase.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn phase(&self, job: u16, phase: Phase, known: Known) -> Result<Job, ClientError> {
        self.post(&format!("/v1/jobs/{job}/phase"), &Reached { phase, known })
    }

    /// A job, once it has its grant or `wait_s` seconds have passed, at most 10.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn job(&self, job: u16, wait_s: u8) -> Result<Job, ClientError> {
        self.get(&format!("/v1/jobs/{job}?wait={wait_s}"))
    }

    /// A job is over.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn end(&self, job: u16) -> Result<(), ClientError> {
        let mut request = self.agent.delete(self.path(&format!("/v1/jobs/{job}")));
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        Self::answer::<Value>(request.call()).map(drop)
    }
}
