//! Random programs on several streams, compared with a model that does all work during the call.
//!
//! With all waits in place, a program reads equal bytes under every schedule. If a removed wait
//! leaves two accesses unordered, the checks report them.
#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::time::Duration;

use gpuheap_driver::*;
use gpuheap_emu::{Emulator, FindingKind, Options, Profile, Schedule};
use proptest::prelude::*;

macro_rules! ok {
    ($gpu:expr, $function:ident($($arg:expr),* $(,)?)) => {
        // SAFETY: the program passes valid pointers and handles.
        assert_eq!(unsafe { $gpu.$function($($arg),*) }, CUresult::SUCCESS, stringify!($function))
    };
}

const STREAMS: usize = 3;
const BUFFERS: usize = 3;
/// Size of a buffer, in bytes. It is larger than a page of the emulator.
const BYTES: usize = 70_000;

/// A step of a program. It runs on a stream and uses whole buffers or parts of them.
#[derive(Clone, Debug)]
enum Step {
    Fill {
        stream: usize,
        buffer: usize,
        at: usize,
        bytes: usize,
        value: u8,
    },
    Copy {
        stream: usize,
        from: usize,
        to: usize,
        at: usize,
        bytes: usize,
    },
    /// Frees the buffer, allocates it anew on the stream, and fills it.
    Renew {
        stream: usize,
        buffer: usize,
        value: u8,
    },
}

impl Step {
    fn stream(&self) -> usize {
        match *self {
            Step::Fill { stream, .. } | Step::Copy { stream, .. } | Step::Renew { stream, .. } => {
                stream
            }
        }
    }

    /// Returns the buffers that the step uses. The flag is true if the step writes the buffer.
    /// Parts of a buffer do not matter, because waits order steps by whole buffers.
    fn uses(&self) -> Vec<(usize, bool)> {
        match *self {
            Step::Fill { buffer, .. } | Step::Renew { buffer, .. } => vec![(buffer, true)],
            Step::Copy { from, to, .. } => vec![(from, false), (to, true)],
        }
    }

    fn is_whole(&self) -> bool {
        match *self {
            Step::Fill { bytes, .. } => bytes == BYTES,
            Step::Copy { bytes, .. } => bytes == BYTES,
            Step::Renew { .. } => true,
        }
    }
}

fn range() -> impl Strategy<Value = (usize, usize)> {
    prop_oneof![Just((0, BYTES)), (0..BYTES).prop_flat_map(|at| (Just(at), 1..=BYTES - at)),]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..STREAMS, 0..BUFFERS, range(), any::<u8>()).prop_map(
            |(stream, buffer, (at, bytes), value)| {
                Step::Fill { stream, buffer, at, bytes, value }
            }
        ),
        (0..STREAMS, 0..BUFFERS, 1..BUFFERS, range()).prop_map(
            |(stream, from, by, (at, bytes))| {
                Step::Copy { stream, from, to: (from + by) % BUFFERS, at, bytes }
            }
        ),
        (0..STREAMS, 0..BUFFERS, any::<u8>()).prop_map(|(stream, buffer, value)| Step::Renew {
            stream,
            buffer,
            value
        }),
    ]
}

/// Returns the content of every buffer after the last step, as if each step were done during its
/// call.
fn model(steps: &[Step]) -> Vec<Vec<u8>> {
    let mut buffers = vec![vec![0_u8; BYTES]; BUFFERS];
    for step in steps {
        match *step {
            Step::Fill { buffer, at, bytes, value, .. } => {
                buffers[buffer][at..at + bytes].fill(value)
            }
            Step::Copy { from, to, at, bytes, .. } => {
                let data = buffers[from][at..at + bytes].to_vec();
                buffers[to][at..at + bytes].copy_from_slice(&data);
            }
            Step::Renew { buffer, value, .. } => buffers[buffer].fill(value),
        }
    }
    buffers
}

/// Returns the waits that the steps need and that nothing else implies. A wait is a pair of a step
/// and an earlier step on another stream.
fn waits(steps: &[Step]) -> Vec<(usize, usize)> {
    let mut waits = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        for (earlier, other) in steps[..index].iter().enumerate() {
            let conflict = step.uses().iter().any(|(buffer, writes)| {
                other.uses().iter().any(|(b, w)| b == buffer && (*w || *writes))
            });
            if conflict && other.stream() != step.stream() {
                waits.push((index, earlier));
            }
        }
    }
    waits
}

/// Runs the steps with these waits. Returns the content of every buffer, and the emulator.
fn run(steps: &[Step], waits: &[(usize, usize)], schedule: Schedule) -> (Vec<Vec<u8>>, Emulator) {
    let device = Profile::with_memory(1 << 30);
    let gpu = Emulator::new(Options { schedule, ..Options::with_device(device) });
    let mut context = CUcontext::NULL;
    ok!(gpu, cuInit(0));
    ok!(gpu, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(gpu, cuCtxSetCurrent(context));
    let mut streams = [CUstream::NULL; STREAMS];
    let mut buffers = [0; BUFFERS];
    for stream in &mut streams {
        ok!(gpu, cuStreamCreate(stream, CU_STREAM_NON_BLOCKING));
    }
    for buffer in &mut buffers {
        ok!(gpu, cuMemAllocAsync(buffer, BYTES, streams[0]));
        ok!(gpu, cuMemsetD8Async(*buffer, 0, BYTES, streams[0]));
    }
    ok!(gpu, cuStreamSynchronize(streams[0]));
    let mut done = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let stream = streams[step.stream()];
        for (_, earlier) in waits.iter().filter(|(later, _)| *later == index) {
            ok!(gpu, cuStreamWaitEvent(stream, done[*earlier], 0));
        }
        match *step {
            Step::Fill { buffer, at, bytes, value, .. } => {
                ok!(gpu, cuMemsetD8Async(buffers[buffer] + at as u64, value, bytes, stream));
            }
            Step::Copy { from, to, at, bytes, .. } => {
                let (from, to) = (buffers[from] + at as u64, buffers[to] + at as u64);
                ok!(gpu, cuMemcpyDtoDAsync_v2(to, from, bytes, stream));
            }
            Step::Renew { buffer, value, .. } => {
                ok!(gpu, cuMemFreeAsync(buffers[buffer], stream));
                ok!(gpu, cuMemAllocAsync(&mut buffers[buffer], BYTES, stream));
                ok!(gpu, cuMemsetD8Async(buffers[buffer], value, BYTES, stream));
            }
        }
        let mut event = CUevent::NULL;
        ok!(gpu, cuEventCreate(&mut event, CU_EVENT_DISABLE_TIMING));
        ok!(gpu, cuEventRecord(event, stream));
        done.push(event);
    }
    ok!(gpu, cuCtxSynchronize());
    let read = |buffer: &u64| {
        let mut data = vec![0_u8; BYTES];
        ok!(gpu, cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), *buffer, BYTES));
        data
    };
    (buffers.iter().map(read).collect(), gpu)
}

fn schedules() -> Vec<Schedule> {
    let lag = Schedule::Lag(Duration::from_micros(5));
    let mut all = vec![Schedule::Immediate, Schedule::OnDemand, lag];
    all.extend((0..5).map(Schedule::Seeded));
    all
}

/// Returns whether the streams and these waits order the step `later` after the step `earlier`.
fn ordered(steps: &[Step], waits: &[(usize, usize)], earlier: usize, later: usize) -> bool {
    let mut reached = HashSet::from([later]);
    for index in (0..=later).rev() {
        if !reached.contains(&index) {
            continue;
        }
        reached.extend((0..index).filter(|other| steps[*other].stream() == steps[index].stream()));
        reached
            .extend(waits.iter().filter(|(after, _)| *after == index).map(|(_, before)| *before));
    }
    reached.contains(&earlier)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        // The second test removes a wait from a random program. It rejects the program if other
        // waits imply the removed wait, as they do for most waits.
        max_global_rejects: 100_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn ordered_program_ignores_schedule(
        steps in prop::collection::vec(step(), 1..25)
    ) {
        let expected = model(&steps);
        let waits = waits(&steps);
        for schedule in schedules() {
            let (found, gpu) = run(&steps, &waits, schedule);
            prop_assert!(found == expected, "{schedule:?} reads other bytes");
            prop_assert_eq!(gpu.findings().unwrap(), vec![]);
        }
    }

    #[test]
    fn a_wait_left_out_is_found(
        steps in prop::collection::vec(step().prop_filter("uses whole buffers", Step::is_whole), 2..15),
        which in any::<prop::sample::Index>()
    ) {
        let mut waits = waits(&steps);
        prop_assume!(!waits.is_empty());
        let (later, earlier) = waits.remove(which.index(waits.len()));
        prop_assume!(!ordered(&steps, &waits, earlier, later));
        // The test leaves out one wait, so that two steps are unordered. If a step in between
        // allocated the buffer anew, the two steps may use different memory and not conflict.
        let renewed = steps[earlier + 1..later].iter().any(|step| matches!(step, Step::Renew { .. }));
        prop_assume!(!renewed);
        for schedule in [Schedule::Immediate, Schedule::OnDemand, Schedule::Seeded(1)] {
            let (_, gpu) = run(&steps, &waits, schedule);
            let kinds: Vec<_> = gpu.findings().unwrap().iter().map(|finding| finding.kind).collect();
            prop_assert!(kinds.contains(&FindingKind::Unordered), "{schedule:?} {kinds:?} without {later} after {earlier}");
        }
    }
}
