//! The programs in the kernel, between interfaces of namespaces, which the tests create and remove.

mod namespaces;
mod orca;
mod reduce;
mod swp2p;
