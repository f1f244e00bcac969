//! An ordinary tonic service, whose code does not depend on what carries it.

#![allow(dead_code, unreachable_pub, reason = "examples, tests and the bench each use a part")]

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Response, Status, Streaming};

#[allow(
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    clippy::use_self,
    unreachable_pub,
    unused_qualifications,
    reason = "generated"
)]
#[rustfmt::skip]
#[path = "services.rs"]
mod generated;

pub use generated::*;

use echo_server::Echo;
use key_value_server::KeyValue;

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A key-value store in memory.
#[derive(Clone, Debug, Default)]
pub struct Store {
    entries: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

impl Store {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn put(&self, entry: Entry) -> Stored {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.insert(entry.key, entry.value);
        Stored { entries: entries.len() as u64 }
    }
}

#[tonic::async_trait]
impl KeyValue for Store {
    async fn get(&self, request: Request<Key>) -> Result<Response<Entry>, Status> {
        let key = request.into_inner().key;
        match self.get(&key) {
            Some(value) => Ok(Response::new(Entry { key, value })),
            None => {
                let mut metadata = MetadataMap::new();
                metadata.insert("store", tonic::metadata::MetadataValue::from_static("example"));
                Err(Status::with_details_and_metadata(
                    Code::NotFound,
                    format!("there is no {key:?} — none at all"),
                    Bytes::from(key),
                    metadata,
                ))
            }
        }
    }

    async fn put(&self, request: Request<Entry>) -> Result<Response<Stored>, Status> {
        Ok(Response::new(self.put(request.into_inner())))
    }

    async fn load(&self, request: Request<Streaming<Entry>>) -> Result<Response<Stored>, Status> {
        let mut entries = request.into_inner();
        let mut stored = Stored { entries: 0 };
        while let Some(entry) = entries.message().await? {
            stored = self.put(entry);
        }
        Ok(Response::new(stored))
    }

    type ListStream = Sent<Entry>;

    async fn list(&self, request: Request<Key>) -> Result<Response<Sent<Entry>>, Status> {
        let prefix = request.into_inner().key;
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let found: Vec<_> = entries
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(key, value)| Ok(Entry { key: key.clone(), value: value.clone() }))
            .collect();
        Ok(Response::new(Box::pin(tokio_stream::iter(found))))
    }

    type FollowStream = Sent<Entry>;

    async fn follow(
        &self,
        request: Request<Streaming<Key>>,
    ) -> Result<Response<Sent<Entry>>, Status> {
        let store = self.clone();
        let found = request.into_inner().map(move |key| {
            let key = key?.key;
            let value = store.get(&key);
            let value = value.ok_or_else(|| Status::not_found(format!("there is no {key:?}")))?;
            Ok(Entry { key, value })
        });
        Ok(Response::new(Box::pin(found)))
    }
}

/// Echoes requests, and metadata whose names begin with `echo-`. `sleep-ms` in the metadata delays the response.
#[derive(Clone, Debug, Default)]
pub struct Parrot {
    /// The numbers of calls of `Once` that its handler has started, and that it has left for any reason.
    pub calls: Arc<[AtomicU64; 2]>,
}

/// Counts the end of a call, including one that is dropped.
struct Leaving(Arc<[AtomicU64; 2]>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0[1].fetch_add(1, Ordering::SeqCst);
    }
}

fn echoed(metadata: &MetadataMap) -> MetadataMap {
    let mut echoed = MetadataMap::new();
    for field in metadata.iter() {
        match field {
            tonic::metadata::KeyAndValueRef::Ascii(key, value)
                if key.as_str().starts_with("echo-") =>
            {
                echoed.append(key.clone(), value.clone());
            }
            tonic::metadata::KeyAndValueRef::Binary(key, value)
                if key.as_str().starts_with("echo-") =>
            {
                echoed.append_bin(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    echoed
}

#[tonic::async_trait]
impl Echo for Parrot {
    async fn once(&self, request: Request<Blob>) -> Result<Response<Blob>, Status> {
        self.calls[0].fetch_add(1, Ordering::SeqCst);
        let _leaving = Leaving(Arc::clone(&self.calls));
        let (metadata, _, blob) = request.into_parts();
        let sleep = metadata.get("sleep-ms").and_then(|ms| ms.to_str().ok()?.parse().ok());
        if let Some(ms) = sleep {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        Ok(Response::from_parts(echoed(&metadata), blob, http::Extensions::new()))
    }

    type ChatStream = Sent<Blob>;

    async fn chat(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Sent<Blob>>, Status> {
        let metadata = echoed(request.metadata());
        let mut response: Response<Sent<Blob>> = Response::new(Box::pin(request.into_inner()));
        *response.metadata_mut() = metadata;
        Ok(response)
    }

    async fn upload(&self, request: Request<Streaming<Blob>>) -> Result<Response<Count>, Status> {
        let mut blobs = request.into_inner();
        let mut count = Count { messages: 0, bytes: 0 };
        while let Some(blob) = blobs.message().await? {
            count.messages += 1;
            count.bytes += blob.bytes.len() as u64;
        }
        Ok(Response::new(count))
    }
}
