//! State of captures and events. During a capture, streams record a graph instead of running work.
//! An event marks a point in a stream's work or in a capture.

use std::sync::Arc;

use gpuheap_driver::{CUstreamCaptureMode, CUstreamCaptureStatus};
use rustc_hash::FxHashMap;

use crate::handles::{HandleKind, Handles};
use crate::state::clock::Clock;
use crate::state::stream::{OpRef, Work};
use crate::state::user_object::{Due, Kept, UserObject};

pub(crate) struct Captures {
    /// Captures that were begun and not ended.
    pub(crate) active: Vec<Capture>,
    pub(crate) graphs: Handles<Graph>,
    pub(crate) executables: Handles<Graph>,
    pub(crate) objects: Handles<UserObject>,
    /// Destructors to call for user objects that ended.
    pub(crate) due: Due,
    /// Capture mode of each thread that changed its mode, keyed by thread number.
    pub(crate) modes: FxHashMap<u64, CUstreamCaptureMode>,
}

pub(crate) struct Capture {
    pub(crate) id: u64,
    /// Handle of the graph that the capture makes. The graph is empty until the capture ends.
    pub(crate) graph: usize,
    pub(crate) context: u32,
    /// Thread that began the capture.
    pub(crate) thread: u64,
    pub(crate) mode: CUstreamCaptureMode,
    pub(crate) invalidated: bool,
    /// Streams of the capture. The capture began on the first stream.
    pub(crate) members: Vec<Member>,
    pub(crate) work: Vec<Work>,
}

pub(crate) struct Member {
    pub(crate) stream: u32,
    /// Number of pieces of work that the stream recorded in the capture.
    pub(crate) work: u64,
    /// Number of the stream's first pieces of work for which another stream of the capture waits.
    pub(crate) joined: u64,
}

/// Recorded work, in an order in which it may run.
#[derive(Clone, Default)]
pub(crate) struct Graph {
    pub(crate) work: Vec<Work>,
    /// User objects that the graph keeps alive. Each launch of the graph also keeps them alive
    /// until the launch is done.
    pub(crate) kept: Vec<Arc<Kept>>,
}

/// Point of a capture at which an event was recorded: after the first `work` pieces of `stream`.
#[derive(Clone, Copy)]
pub(crate) struct Captured {
    pub(crate) capture: u64,
    pub(crate) stream: u32,
    pub(crate) work: u64,
}

impl Captures {
    pub(crate) fn new() -> Captures {
        Captures {
            active: Vec::new(),
            graphs: Handles::new(HandleKind::Graph),
            executables: Handles::new(HandleKind::Executable),
            objects: Handles::new(HandleKind::UserObject),
            due: Due::default(),
            modes: FxHashMap::default(),
        }
    }

    /// Returns the capture that a stream is part of.
    pub(crate) fn find(&mut self, stream: u32) -> Option<&mut Capture> {
        self.active.iter_mut().find(|capture| capture.has(stream))
    }

    pub(crate) fn is_recording(&self, stream: u32) -> bool {
        self.active.iter().any(|capture| capture.has(stream))
    }

    pub(crate) fn mode(&self, thread: u64) -> CUstreamCaptureMode {
        self.modes.get(&thread).copied().unwrap_or(CUstreamCaptureMode::GLOBAL)
    }

    /// Invalidates the captures that forbid unsafe calls of `thread`. Returns `true` if there are
    /// such captures.
    pub(crate) fn break_by(&mut self, thread: u64) -> bool {
        let mode = self.mode(thread);
        if mode == CUstreamCaptureMode::RELAXED {
            return false;
        }
        let mut broken = false;
        for capture in &mut self.active {
            let own = capture.thread == thread && capture.mode != CUstreamCaptureMode::RELAXED;
            let global = [mode, capture.mode] == [CUstreamCaptureMode::GLOBAL; 2];
            if own || global {
                capture.invalidated = true;
                broken = true;
            }
        }
        broken
    }
}

impl Capture {
    pub(crate) fn has(&self, stream: u32) -> bool {
        self.members.iter().any(|member| member.stream == stream)
    }

    pub(crate) fn member(&mut self, stream: u32) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.stream == stream)
    }

    pub(crate) fn status(&self) -> CUstreamCaptureStatus {
        if self.invalidated {
            CUstreamCaptureStatus::INVALIDATED
        } else {
            CUstreamCaptureStatus::ACTIVE
        }
    }

    /// Returns whether a stream that joined the capture has recorded work for which no other stream
    /// waits.
    pub(crate) fn is_unjoined(&self) -> bool {
        self.members.iter().skip(1).any(|member| member.joined < member.work)
    }
}

/// Returns whether a call invalidates captures whose mode forbids unsafe calls. An H200 refused
/// these calls (driver 580). The list includes all synchronous copies and fills, although the H200
/// accepted them if the capturing stream does not wait for the legacy default stream.
pub(crate) fn may_disturb(symbol: &str) -> bool {
    let starts = [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemHostAlloc",
        "cuMemHostRegister",
        "cuMemHostUnregister",
        "cuMemcpy",
        "cuMemset",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamQuery",
        "cuStreamSynchronize",
        "cuMemPoolTrimTo",
    ];
    !symbol.contains("Async") && starts.iter().any(|start| symbol.starts_with(start))
}

/// Event that the program created.
pub(crate) struct Event {
    pub(crate) context: u32,
    pub(crate) flags: u32,
    /// Last record; `None` before the first record.
    pub(crate) recorded: Option<Record>,
    /// Point of the capture at which the event was recorded, if its last record was in a capture.
    pub(crate) captured: Option<Captured>,
}

/// Last record of an event.
pub(crate) struct Record {
    pub(crate) op: OpRef,
    /// Virtual time at which the stream passed the record, in nanoseconds.
    pub(crate) time: Option<u64>,
    /// Vector clock of everything that happened before the record; `None` if the checks are off.
    pub(crate) clock: Option<Box<Clock>>,
}
