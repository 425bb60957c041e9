//! Sweeps in which every driver call of a scenario fails in turn. The library's own tests and the
//! tests of the C interface include this file.

use gpuheap::emu::{Emulator, FaultPlan};
use gpuheap_driver::CUresult;

/// Runs a scenario repeatedly. In the first run, the first driver call fails; in the second run,
/// the second call; and so on until a run makes fewer calls. Returns how many runs failed, and how
/// many recovered.
///
/// `run` returns whether a run failed, and whether it made the failing call, as
/// [`with_failing_call`] does.
pub(crate) fn fail_each_call(run: impl Fn(u64) -> (bool, bool)) -> (u64, u64) {
    let (mut failed, mut made_good) = (0, 0);
    for nth in 1.. {
        let (is_err, got_there) = run(nth);
        if !got_there {
            break;
        }
        (made_good, failed) = (made_good + u64::from(!is_err), failed + u64::from(is_err));
    }
    (failed, made_good)
}

/// Fails each driver call of a scenario in turn, with two error codes. Asserts that the run without
/// a failing call succeeds. Of the other runs, more than `failures` must fail, and at least
/// `recoveries` must succeed.
pub(crate) fn assert_errs_or_recovers(
    what: &str,
    (failures, recoveries): (u64, u64),
    run: impl Fn(u64, CUresult) -> (bool, bool),
) {
    for code in [CUresult::ERROR_OUT_OF_MEMORY, CUresult::ERROR_UNKNOWN] {
        assert!(!run(0, code).0, "{what}: a run fails without a failing call");
        let (failed, made_good) = fail_each_call(|nth| run(nth, code));
        assert!(
            failed > failures && made_good >= recoveries,
            "{what}, {code:?}: {failed} failed, {made_good} not"
        );
    }
}

/// Runs `work` with its `nth` driver call failing with `code`; if `nth` is 0, no call fails. Later
/// calls do not fail. Returns the result of `work`, and `true` if `work` made that call.
pub(crate) fn with_failing_call<R>(
    emulator: &Emulator,
    nth: u64,
    code: CUresult,
    work: impl FnOnce() -> R,
) -> (R, bool) {
    let before = emulator.calls();
    emulator.set_faults(FaultPlan::fail_call(nth, code));
    let result = work();
    let got_there = emulator.calls() - before >= nth;
    emulator.set_faults(FaultPlan::default());
    (result, got_there)
}
