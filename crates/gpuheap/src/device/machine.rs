//! The driver of the machine's GPUs, opened once in a process, and the contexts made with it.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use gpuheap_driver::{LibCuda, OpenError};
use gpuheap_pool::Gone;

use super::context::{Context, DeviceOrigin};
use crate::error::{Error, Fault};
use crate::fork;

/// The driver. It stays loaded to the end of the process, because threads may be inside it.
static MACHINE: Mutex<Machine> = Mutex::new(Machine { driver: None, contexts: Vec::new() });
/// Number of forks when the driver was opened, plus one; zero if it was not opened. It is read
/// before the lock is taken, because a forked child may lack the thread that held the lock.
static OPENED: AtomicU64 = AtomicU64::new(0);

struct Machine {
    driver: Option<Arc<LibCuda>>,
    contexts: Vec<Weak<Context>>,
}

/// Returns the primary context of a real device. Retains it unless a [`Context`] of it exists.
pub(super) fn context(ordinal: i32) -> Result<Arc<Context>, Error> {
    let mut machine = open()?;
    let driver = machine.driver()?;
    machine.contexts.retain(|known| known.strong_count() > 0);
    let held = machine.contexts.iter().filter_map(Weak::upgrade);
    if let Some(held) = held.into_iter().find(|held| is_context_of(held, ordinal)) {
        return Ok(held);
    }
    let origin = DeviceOrigin { emulator: None, fallback: None };
    let context = Context::retain(driver, origin, ordinal, &format!("cuda:{ordinal}"))?;
    machine.contexts.push(Arc::downgrade(&context));
    Ok(context)
}

/// Device files. A machine with a GPU has at least one of them. NVIDIA's driver makes the first
/// two, and WSL2 makes the last.
const GPU_NODES: [&str; 3] = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"];

/// Opens the driver. On a machine without a GPU, the inner result is a text that lists the places
/// searched. The outer result is an error if a present GPU's driver does not start. It is also an
/// error if the library is not a driver or is too old.
pub(super) fn driver_if_any() -> Result<Result<Arc<LibCuda>, String>, Error> {
    let error = match open()?.start() {
        Ok(driver) => return Ok(Ok(driver)),
        Err(error) => error,
    };
    let has_gpu = GPU_NODES.iter().any(|path| Path::new(path).exists());
    let found = match &error {
        OpenError::NotFound { tried } if !has_gpu => {
            let tried: Vec<_> = tried.iter().map(|(path, _)| path.display().to_string()).collect();
            format!("libcuda was not found as {}", tried.join(", "))
        }
        OpenError::Initialise { path, function, code } if !has_gpu => {
            format!("{function} of {} returned {code:?}", path.display())
        }
        _ => return Err(Fault::Open(error).into()),
    };
    Ok(Err(format!("no GPU was found: {found}, and none of {} exists", GPU_NODES.join(", "))))
}

fn is_context_of(context: &Context, ordinal: i32) -> bool {
    context.ordinal() == ordinal && context.check_alive().is_ok()
}

fn open() -> Result<MutexGuard<'static, Machine>, Error> {
    let now = u64::from(fork::watch()) + 1;
    match OPENED.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Err(before) if before != now => Err(Gone::Forked.into()),
        _ => Ok(MACHINE.lock().unwrap_or_else(PoisonError::into_inner)),
    }
}

impl Machine {
    fn driver(&mut self) -> Result<Arc<LibCuda>, Error> {
        Ok(self.start().map_err(Fault::Open)?)
    }

    fn start(&mut self) -> Result<Arc<LibCuda>, OpenError> {
        if let Some(driver) = &self.driver {
            return Ok(driver.clone());
        }
        match LibCuda::open() {
            Ok(driver) => Ok(self.driver.insert(Arc::new(driver)).clone()),
            Err(error) => {
                // The driver was not opened, so a child that is forked later can open it.
                OPENED.store(0, Ordering::Relaxed);
                Err(error)
            }
        }
    }
}
