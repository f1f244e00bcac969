//! Congestion controls of other crates: the only controllers that are called through a pointer.

use core::fmt::{self, Debug};
use std::sync::Arc;

use super::Controller;

/// A congestion control that is not in this repository: a controller that each connection begins with a copy of.
#[derive(Clone)]
pub struct External {
    name: &'static str,
    counts_marks: bool,
    first: Arc<dyn Prototype>,
}

impl External {
    /// The control `name`, whose connections begin with `first`. With `counts_marks`, data is ECN-capable and each mark is reported,
    /// as DCTCP's are; otherwise [`ecn`](crate::tcp::Config::ecn) decides.
    #[must_use]
    pub fn new<C>(name: &'static str, counts_marks: bool, first: C) -> Self
    where
        C: Controller + Clone + Debug + Send + Sync + 'static,
    {
        Self { name, counts_marks, first: Arc::new(first) }
    }

    /// Its name in scenarios and results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    pub(in crate::tcp) const fn counts_marks(&self) -> bool {
        self.counts_marks
    }

    /// The controller of a new connection.
    pub(super) fn start(&self, mss: u64, initial_window: u64) -> Boxed {
        let mut controller = self.first.copy();
        controller.start(mss, initial_window);
        Boxed(controller)
    }
}

impl Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.name, self.first, self.counts_marks)
    }
}

/// Controls are equal if they print alike: their parameters are fields of the controller.
impl PartialEq for External {
    fn eq(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Eq for External {}

/// A controller that can be copied.
trait Prototype: Controller + Debug + Send + Sync {
    fn copy(&self) -> Box<dyn Prototype>;
}

impl<C: Controller + Clone + Debug + Send + Sync + 'static> Prototype for C {
    fn copy(&self) -> Box<dyn Prototype> {
        Box::new(self.clone())
    }
}

/// The controller of a connection.
#[derive(Debug)]
pub(in crate::tcp) struct Boxed(Box<dyn Prototype>);

impl Clone for Boxed {
    fn clone(&self) -> Self {
        Self(self.0.copy())
    }
}

impl core::ops::Deref for Boxed {
    type Target = dyn Controller;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl core::ops::DerefMut for Boxed {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.0
    }
}
