//! Programs in the kernel at the ingress of interfaces (tc-BPF, attached by TCX: Linux 6.6).
//!
//! A [`Classifier`] is a program in C that is compiled, loaded, and attached to interfaces; the caller defines what it
//! does and what its maps mean. It stays attached until it is dropped or the process ends.

use std::io::Write;
use std::process::{Command, Stdio};

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use rackweave_linux::capability::Capability;
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

/// The start of a program's sources: types, the context of a frame, and the calls of the kernel, which programs share.
pub const PRELUDE: &str = include_str!("bpf.h");

/// Why a program cannot run in the kernel.
#[derive(Debug, thiserror::Error)]
pub enum TcError {
    /// `clang` is not installed.
    #[error(
        "programs in the kernel need `clang`, which is not installed (Debian, Ubuntu: apt-get install clang)"
    )]
    NoCompiler,
    /// The compiler rejects the program.
    #[error("clang cannot compile the program for the kernel: {0}")]
    Compiler(String),
    /// The process lacks the necessary capabilities.
    #[error("programs in the kernel need the capabilities CAP_BPF and CAP_NET_ADMIN: run as root")]
    NoRights,
    /// The kernel rejects the program.
    #[error("the kernel rejects the program: {0}")]
    Load(String),
    /// The program cannot be attached.
    #[error(
        "cannot attach the program to the interface `{interface}` (needs Linux 6.6 or later): {reason}"
    )]
    Attach {
        /// The interface that the program was to be attached to.
        interface: String,
        /// The system's reason.
        reason: String,
    },
    /// An interface was named twice.
    #[error("the interface `{0}` is named twice")]
    Twice(String),
    /// A program of the same name is attached already.
    #[error(
        "the interface `{0}` is a port of another switch in the kernel: end the process that runs it first"
    )]
    Taken(String),
    /// A map cannot be read or written.
    #[error("cannot access the program's state in the kernel: {0}")]
    State(String),
}

impl TcError {
    /// An error of a map.
    #[must_use]
    pub fn state(error: &dyn std::error::Error) -> Self {
        Self::State(chain(error))
    }

    fn load(error: &dyn std::error::Error) -> Self {
        Self::Load(chain(error))
    }
}

/// A program in the kernel.
#[derive(Debug)]
pub struct Classifier {
    kernel: Ebpf,
    name: &'static str,
}

impl Classifier {
    /// Compiles the sources, which are concatenated into one file, and loads the program `name` of it with its maps.
    /// This takes about 100 ms.
    ///
    /// # Errors
    /// If capabilities or the compiler are missing, or the compiler or the kernel rejects the program.
    pub fn load(sources: &[&str], name: &'static str) -> Result<Self, TcError> {
        let bpf = Capability::Bpf.is_held() || Capability::SysAdmin.is_held();
        if !(bpf && Capability::NetAdmin.is_held()) {
            return Err(TcError::NoRights);
        }
        let mut kernel = Ebpf::load(&compile(sources)?).map_err(|error| TcError::load(&error))?;
        // Other programs of the file are not loaded.
        classifier(&mut kernel, name)?.load().map_err(|error| TcError::load(&error))?;
        Ok(Self { kernel, name })
    }

    /// Attaches the program to the ingress of interfaces in this thread's namespace.
    ///
    /// # Errors
    /// If an interface does not exist, or has a program of this name.
    pub fn attach(&mut self, interfaces: &[String]) -> Result<(), TcError> {
        if let Some(taken) = interfaces.iter().find(|interface| self.is_at(interface)) {
            return Err(TcError::Taken(taken.clone()));
        }
        for interface in interfaces {
            let options = TcAttachOptions::TcxOrder(LinkOrder::default());
            let program = self.program()?;
            program.attach_with_options(interface, TcAttachType::Ingress, options).map_err(
                |error| TcError::Attach { interface: interface.clone(), reason: chain(&error) },
            )?;
        }
        Ok(())
    }

    /// Returns whether a program of this name is attached to an interface.
    fn is_at(&self, interface: &str) -> bool {
        // The kernel keeps 15 bytes of a name.
        let name = &self.name[..self.name.len().min(15)];
        // Without the necessary capabilities, or on an old kernel, attaching reports the error.
        SchedClassifier::query_tcx(interface, TcAttachType::Ingress).is_ok_and(|(_, programs)| {
            programs.iter().any(|program| program.name_as_str() == Some(name))
        })
    }

    /// Returns the program.
    ///
    /// # Errors
    /// None, once it is loaded.
    pub fn program(&mut self) -> Result<&mut SchedClassifier, TcError> {
        classifier(&mut self.kernel, self.name)
    }

    /// Returns a map of the program for reading.
    ///
    /// # Errors
    /// If the program has no such map.
    pub fn map(&self, name: &'static str) -> Result<&Map, TcError> {
        self.kernel.map(name).ok_or_else(|| TcError::State(format!("no map {name}")))
    }

    /// Returns a map of the program for reading and writing.
    ///
    /// # Errors
    /// If the program has no such map.
    pub fn map_mut(&mut self, name: &'static str) -> Result<&mut Map, TcError> {
        self.kernel.map_mut(name).ok_or_else(|| TcError::State(format!("no map {name}")))
    }
}

fn classifier<'a>(kernel: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, TcError> {
    let program = kernel.program_mut(name);
    let program = program.ok_or_else(|| TcError::Load(format!("no program {name}")))?;
    program.try_into().map_err(|error: ProgramError| TcError::load(&error))
}

/// Returns the indices of interfaces in this thread's namespace, in the order of `names`.
///
/// # Errors
/// If an interface does not exist, or is named twice.
pub fn interface_indices(names: &[String]) -> Result<Vec<u32>, TcError> {
    let mut indices = Vec::with_capacity(names.len());
    for name in names {
        let missing = |error: rustix::io::Errno| TcError::Attach {
            interface: name.clone(),
            reason: std::io::Error::from(error).to_string(),
        };
        let any = socket(AddressFamily::INET, SocketType::DGRAM, None).map_err(missing)?;
        let index = name_to_index(any, name).map_err(missing)?;
        if indices.contains(&index) {
            return Err(TcError::Twice(name.clone()));
        }
        indices.push(index);
    }
    Ok(indices)
}

/// Compiles sources to an object file: `clang` reads its standard input and writes to its standard output.
fn compile(sources: &[&str]) -> Result<Vec<u8>, TcError> {
    let mut child = Command::new("clang")
        .args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror"])
        .args(["-x", "c", "-c", "-o", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => TcError::NoCompiler,
            _ => TcError::Compiler(error.to_string()),
        })?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read everything, its output has the reason.
        let _ = sources.iter().try_for_each(|source| stdin.write_all(source.as_bytes()));
    }
    let output = child.wait_with_output().map_err(|error| TcError::Compiler(error.to_string()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(TcError::Compiler(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// An error's text and those of its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !text.contains(&more) {
            text = text + ": " + &more;
        }
        next = error.source();
    }
    text
}
