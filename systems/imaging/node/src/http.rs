//! Requests to other nodes. All calls block.

use std::io::Read;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::Agent;
use ureq::http::header;

use crate::digest::Digest;

/// How long a connection, and an answer of the directory, may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer of the directory.
const LONGEST: u64 = 1 << 20;

/// The client of other nodes.
#[derive(Debug)]
pub(crate) struct Http(Agent);

impl Http {
    pub(crate) fn new() -> Self {
        let config = Agent::config_builder()
            .timeout_connect(Some(PATIENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .user_agent("rackweave")
            .build();
        Self(config.into())
    }

    /// Tells a node something, and returns its answer.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        to: SocketAddr,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, String> {
        let send = || {
            let request = self.0.post(format!("http://{to}{path}"));
            request.config().timeout_global(Some(PATIENCE)).build().send_json(body)
        };
        // A connection that was kept may have been closed meanwhile.
        let response = send().or_else(|_| send());
        let mut response = response.map_err(|error| error.to_string())?;
        let text = response.body_mut().with_config().limit(LONGEST).read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("{}: {}", response.status(), rackweave_core::visible(text.trim())));
        }
        serde_json::from_str(&text)
            .map_err(|error| format!("its answer is not understood: {error}"))
    }

    /// Bytes of a blob that a node has or waits for.
    pub(crate) fn blob(
        &self,
        from: SocketAddr,
        digest: &Digest,
        bytes: Range<u64>,
        patience: Duration,
    ) -> Result<impl Read + use<>, String> {
        let request = self.0.get(format!("http://{from}/node/v1/blobs/{digest}"));
        let request =
            request.header(header::RANGE, format!("bytes={}-{}", bytes.start, bytes.end - 1));
        let request = request.config().timeout_global(Some(patience)).build();
        let response = request.call().map_err(|error| error.to_string())?;
        if response.status() != 206 {
            return Err(format!("the node {from} does not have it: {}", response.status()));
        }
        let limit = bytes.end - bytes.start;
        Ok(response.into_body().into_with_config().limit(limit).reader())
    }
}
