//! Ctrl-C and SIGTERM: the one handler of the process.
#![cfg_attr(not(feature = "hosts"), allow(dead_code, reason = "commands for hosts use more"))]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use miette::miette;

use super::exit;

/// What the first signal does besides setting the flag.
type Action = Box<dyn FnMut() + Send>;

/// A flag that Ctrl-C or SIGTERM sets. A second signal ends the process with [`exit::INTERRUPTED`].
#[derive(Clone, Default)]
pub(crate) struct Interrupt {
    flag: Arc<AtomicBool>,
    action: Arc<Mutex<Option<Action>>>,
}

impl Interrupt {
    /// Installs the handler.
    ///
    /// # Errors
    /// If the system refuses, or the process has one already.
    pub(crate) fn watch() -> miette::Result<Self> {
        Self::watch_with(|| {})
    }

    /// [`Interrupt::watch`] with [`Interrupt::on_first`].
    ///
    /// # Errors
    /// As `watch`.
    pub(crate) fn watch_with(action: impl FnMut() + Send + 'static) -> miette::Result<Self> {
        let this = Self::default();
        this.on_first(action);
        let handler = this.clone();
        ctrlc::set_handler(move || handler.on_signal())
            .map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))?;
        Ok(this)
    }

    /// Calls the action at the first signal, and ignores further ones: the command ends soon, and what it prints then is its
    /// result.
    ///
    /// # Errors
    /// As `watch`.
    pub(crate) fn ends_by(action: impl FnMut() + Send + 'static) -> miette::Result<()> {
        ctrlc::set_handler(action).map_err(|error| miette!("cannot listen for Ctrl-C: {error}"))
    }

    fn on_signal(&self) {
        if self.flag.swap(true, Ordering::Relaxed) {
            exit::now(exit::INTERRUPTED);
        }
        if let Some(action) = &mut *self.action.lock().unwrap_or_else(PoisonError::into_inner) {
            action();
        }
    }

    /// Sets what the first signal does besides setting the flag, in place of an earlier action.
    pub(crate) fn on_first(&self, action: impl FnMut() + Send + 'static) {
        *self.action.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
    }

    /// Calls a function that the first signal, also an earlier one, ends together with the process, because it may wait for
    /// input. There is no action afterwards.
    pub(crate) fn ends_during<T>(&self, what: impl FnOnce() -> T) -> T {
        self.on_first(|| exit::now(exit::INTERRUPTED));
        if self.is_set() {
            exit::now(exit::INTERRUPTED);
        }
        let done = what();
        self.on_first(|| {});
        done
    }

    /// Whether there was a signal.
    pub(crate) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// The flag, for libraries that poll it.
    pub(crate) fn flag(&self) -> &Arc<AtomicBool> {
        &self.flag
    }
}

/// The first Ctrl-C stops the work, which keeps what is finished; the second ends the process.
///
/// # Errors
/// As [`Interrupt::watch`].
pub(crate) fn stop_on_ctrl_c<T: Send + Sync + 'static>(
    work: &Arc<T>,
    stop: fn(&T),
) -> miette::Result<()> {
    let work = Arc::clone(work);
    Interrupt::watch_with(move || stop(&work)).map(drop)
}
