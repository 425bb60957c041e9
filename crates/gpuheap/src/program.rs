//! Runs callbacks of the program, and the destructors of the values that they captured.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program. Catches a panic, and returns its text as the error.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no text").to_owned();
        // The payload may be of a type whose destructor panics.
        std::mem::forget(panic);
        text
    })
}

/// A callback of the program. When it is dropped, a destructor of a captured value may panic. The
/// drop catches that panic: in a destructor, or at the end of a thread, a panic would end the
/// process.
pub(crate) struct Callback<F>(Option<F>);

impl<F> Callback<F> {
    pub(crate) fn new(callback: F) -> Callback<F> {
        Callback(Some(callback))
    }

    /// Returns the callback. `None` once it was taken.
    pub(crate) fn get(&self) -> Option<&F> {
        self.0.as_ref()
    }

    /// Takes the callback, to be called once.
    pub(crate) fn take(&mut self) -> Option<F> {
        self.0.take()
    }
}

impl<F> Drop for Callback<F> {
    fn drop(&mut self) {
        let callback = self.take();
        // The panic was printed, and there is no caller to report it to.
        let _ = run(move || drop(callback));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a bomb");
        }
    }

    #[test]
    fn run_returns_panic_text() {
        let number = 7;
        assert_eq!(run(|| number), Ok(7));
        assert_eq!(run(|| panic!("at once")), Err::<(), _>("at once".to_owned()));
        assert_eq!(run(|| panic!("at {number}")), Err::<(), _>("at 7".to_owned()));
        let payload = || std::panic::panic_any(Bomb);
        assert_eq!(run(payload), Err::<(), _>("no text".to_owned()));
    }

    #[test]
    fn callback_drop_catches_panic() {
        let bomb = Bomb;
        drop(Callback::new(move || {
            let _ = &bomb;
        }));
    }
}
