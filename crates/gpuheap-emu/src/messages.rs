//! Messages that the emulated libraries of the driver and NVML print on stderr.

use std::any::Any;
use std::io::Write;
use std::panic::PanicHookInfo;

/// Printer of one emulated library's messages on stderr. The field is the library's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Messages(pub &'static str);

impl Messages {
    /// Writes one line, `gpuheap: NAME: LINE`. If stderr is closed, loses the line without an
    /// error.
    pub fn say(self, line: &str) {
        let Self(name) = self;
        let _ = writeln!(std::io::stderr().lock(), "gpuheap: {name}: {line}");
    }

    /// Sets the panic hook, so that each panic prints one line with this library's name.
    ///
    /// The hook belongs to the caller's copy of the standard library. A `cdylib` has its own copy,
    /// so the program's hook stays as it is.
    pub fn say_panics(self) {
        std::panic::set_hook(Box::new(move |panic| self.say(&describe(panic))));
    }
}

fn describe(panic: &PanicHookInfo<'_>) -> String {
    let place = panic.location().map_or_else(String::new, |place| format!(" at {place}"));
    format!("a panic{place}, which is a bug of gpuheap's: {}", payload_text(panic.payload()))
}

fn payload_text(payload: &(dyn Any + Send)) -> &str {
    let owned = || payload.downcast_ref::<String>().map(String::as_str);
    payload.downcast_ref::<&str>().copied().or_else(owned).unwrap_or("no text")
}
