//! Runs tasks on all cores.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Runs all tasks, one on each core at a time. Returns their results in order.
pub(crate) fn on_all_cores<T: Send, R: Send>(
    tasks: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(tasks.len());
    let (tasks, results) = (Mutex::new(tasks.enumerate()), Mutex::new(Vec::new()));
    let run = || {
        // The inner block releases the lock, so that no thread holds it while it works.
        while let Some((index, task)) =
            { tasks.lock().unwrap_or_else(PoisonError::into_inner).next() }
        {
            let result = work(task);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    // If a thread panics, the scope panics too.
    thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(run);
        }
        run();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_unstable_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}
