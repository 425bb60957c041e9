//! NCCL: communicators of any size. Their collectives act as if every rank had this rank's values.
//! The sizes of their memory are in `nccl/memory.rs`.
//!
//! No rank waits for another rank. Results above 1 MiB are not written, because programs base
//! decisions only on small results. A dry run keeps no content of that size.

mod memory;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

use gpuheap_driver::abi::{self, Code};
use gpuheap_driver::{CUdeviceptr, CUresult, CUstream, Driver, export};

use crate::device::{self, Loaded, Memory, driver};
use crate::report;
use memory::Channels;

/// Largest result that a collective writes, in bytes.
const MOST_BYTES: usize = 1 << 20;
/// Lowest identifier of a reduction that a program creates. NCCL predefines lower identifiers.
const OWN_REDUCTION: c_int = 5;
/// Colour of a rank that joins no communicator in a split.
const NO_COLOUR: c_int = -1;

/// Result code of an NCCL function.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct NcclCode(c_int);

impl NcclCode {
    const UNHANDLED_CUDA_ERROR: Self = Self(1);
    const INVALID_ARGUMENT: Self = Self(4);
}

impl Code for NcclCode {
    const SUCCESS: Self = Self(0);
    const NULL: Self = Self::INVALID_ARGUMENT;
    /// `ncclInternalError`.
    const PANICKED: Self = Self(3);
}

type Outcome = Result<(), NcclCode>;
type Out<T> = abi::Out<T, NcclCode>;
type Handle = abi::Handle<Communicator, NcclCode>;

/// Communicator of one rank.
struct Communicator {
    ranks: c_int,
    rank: c_int,
    channels: Channels,
    /// Buffers for data of neighbours in the ring of ranks. The first collective allocates them.
    buffers: Option<Memory>,
    /// Buffers for messages, keyed by peer and by a flag that is `true` for messages from the peer.
    /// They are allocated at the first message.
    messages: BTreeMap<(c_int, bool), Memory>,
}

impl Communicator {
    /// Allocates the buffers at the first collective, unless this rank is the only one.
    fn connect(&mut self) -> Outcome {
        if self.ranks > 1 && self.buffers.is_none() {
            self.buffers = Some(take(&[Loaded::NcclStacks], self.channels.route.buffers())?);
        }
        Ok(())
    }

    /// Allocates the buffers as [`connect`](Self::connect) does, and memory for the kernels that
    /// broadcast.
    fn connect_generic(&mut self) -> Outcome {
        self.connect()?;
        match self.ranks == 1 || device::load(Loaded::NcclGeneric) {
            true => Ok(()),
            false => Err(NcclCode::UNHANDLED_CUDA_ERROR),
        }
    }

    /// Allocates the buffers for messages to or from a peer, at the first message. A rank has no
    /// buffers for messages to itself.
    fn meet(&mut self, peer: c_int, is_receiver: bool) -> Outcome {
        if peer < 0 || peer >= self.ranks {
            return Err(NcclCode::INVALID_ARGUMENT);
        }
        if peer != self.rank && !self.messages.contains_key(&(peer, is_receiver)) {
            let code = [Loaded::NcclStacks, Loaded::NcclGeneric, Loaded::NcclMessages];
            let buffers = take(&code, self.channels.route.messages(is_receiver))?;
            self.messages.insert((peer, is_receiver), buffers);
        }
        Ok(())
    }
}

/// Allocates the memory of NCCL's code, and `bytes` of buffers.
fn take(code: &[Loaded], bytes: usize) -> Result<Memory, NcclCode> {
    device::take(code, bytes).ok_or(NcclCode::UNHANDLED_CUDA_ERROR)
}

/// Identifier of a communicator, `ncclUniqueId`. Ranks pass it to each other.
#[repr(C)]
struct UniqueId([u8; 128]);

export! {
    fn ncclGetUniqueId(id: Out<UniqueId>) -> Outcome {
        let mut made = UniqueId([0; 128]);
        made.0[..4].copy_from_slice(&std::process::id().to_ne_bytes());
        id.write(made)
    }

    fn ncclCommInitRank(made: Out<Handle>, ranks: c_int, _id: UniqueId, rank: c_int) -> Outcome {
        make(made, ranks, rank)
    }

    /// Creates a communicator. Does not read the settings.
    fn ncclCommInitRankConfig(
        made: Out<Handle>, ranks: c_int, _id: UniqueId, rank: c_int, _settings: *mut c_void,
    ) -> Outcome {
        make(made, ranks, rank)
    }

    /// Creates a communicator. Ignores the identifiers and the settings.
    fn ncclCommInitRankScalable(
        made: Out<Handle>, ranks: c_int, rank: c_int, _count: c_int, _ids: *mut c_void,
        _settings: *mut c_void,
    ) -> Outcome {
        make(made, ranks, rank)
    }

    /// Creates one communicator for each device of the process, in the device's primary context.
    fn ncclCommInitAll(made: Out<Handle>, count: c_int, devices: *const c_int) -> Outcome {
        if count > 0 {
            made.require()?;
        }
        (0..count).try_for_each(|rank| {
            let device = match devices.is_null() {
                true => rank,
                // SAFETY: the caller passes null or an array of `count` devices.
                false => unsafe { devices.add(rank as usize).read() },
            };
            device::on(device, || make(made.at(rank as usize), count, rank))
        })
    }

    /// Creates a communicator for a part of the ranks. The emulator does not know which ranks join,
    /// so the new communicator gets the size and the rank of `old`.
    fn ncclCommSplit(
        old: Handle, colour: c_int, _key: c_int, made: Out<Handle>, _settings: *mut c_void,
    ) -> Outcome {
        if colour == NO_COLOUR {
            return made.write(Handle::NULL);
        }
        report::add_line("NCCL", "parts of a communicator (ncclCommSplit) have the size of the whole");
        let (ranks, rank) = old.read(|old| (old.ranks, old.rank))?;
        make(made, ranks, rank)
    }

    /// Destroys a communicator, even if its work has not completed.
    fn ncclCommDestroy | ncclCommAbort(communicator: Handle) -> Outcome {
        communicator.end()
    }

    fn ncclCommCount(communicator: Handle, count: Out<c_int>) -> Outcome {
        count.write(communicator.read(|communicator| communicator.ranks)?)
    }

    fn ncclCommUserRank(communicator: Handle, rank: Out<c_int>) -> Outcome {
        rank.write(communicator.read(|communicator| communicator.rank)?)
    }

    /// Writes success: no error occurred.
    fn ncclCommGetAsyncError(_communicator: Handle, error: Out<NcclCode>) -> Outcome {
        error.write(NcclCode::SUCCESS)
    }

    /// Succeeds without an effect: the buffer is not registered.
    fn ncclCommRegister(
        _communicator: Handle, buffer: *mut c_void, _bytes: usize, handle: Out<*mut c_void>,
    ) -> Outcome {
        handle.write(buffer)
    }

    fn ncclRedOpCreatePreMulSum(
        reduction: Out<c_int>, _scalar: *mut c_void, _kind: c_int, _residence: c_int,
        _communicator: Handle,
    ) -> Outcome {
        reduction.write(OWN_REDUCTION)
    }

    fn ncclMemAlloc(memory: Out<CUdeviceptr>, bytes: usize) -> Outcome {
        let mut address = 0;
        // SAFETY: `address` is valid for the write. The program frees the memory.
        check(driver().map(|driver| unsafe { driver.cuMemAlloc_v2(&mut address, bytes) }))?;
        memory.write(address)
    }

    fn ncclMemFree(memory: CUdeviceptr) -> Outcome {
        // SAFETY: the driver checks the address. The program does not use the memory after this
        // call.
        check(driver().map(|driver| unsafe { driver.cuMemFree_v2(memory) }))
    }

    /// Writes this rank's values as the result.
    fn ncclAllReduce(
        sent: CUdeviceptr, result: CUdeviceptr, count: usize, kind: c_int, _reduction: c_int,
        communicator: Handle, stream: CUstream,
    ) -> Outcome {
        communicator.change(Communicator::connect)??;
        copy(result, sent, bytes_of(count, kind), stream)
    }

    /// Writes this rank's values as the result if this rank is the root. Other ranks get no result.
    fn ncclReduce(
        sent: CUdeviceptr, result: CUdeviceptr, count: usize, kind: c_int, _reduction: c_int,
        root: c_int, communicator: Handle, stream: CUstream,
    ) -> Outcome {
        let is_root = communicator.change(|one| one.connect().map(|()| one.rank == root))??;
        if is_root { copy(result, sent, bytes_of(count, kind), stream) } else { Ok(()) }
    }

    /// Writes this rank's values as the result.
    fn ncclBroadcast(
        sent: CUdeviceptr, result: CUdeviceptr, count: usize, kind: c_int, _root: c_int,
        communicator: Handle, stream: CUstream,
    ) -> Outcome {
        communicator.change(Communicator::connect_generic)??;
        copy(result, sent, bytes_of(count, kind), stream)
    }

    /// Leaves this rank's values in place.
    fn ncclBcast(
        _values: CUdeviceptr, _count: usize, _kind: c_int, _root: c_int, communicator: Handle,
        _stream: CUstream,
    ) -> Outcome {
        communicator.change(Communicator::connect_generic)?
    }

    /// Writes this rank's values in the place of every rank's, because ranks exchange no data.
    fn ncclAllGather(
        sent: CUdeviceptr, result: CUdeviceptr, count: usize, kind: c_int, communicator: Handle,
        stream: CUstream,
    ) -> Outcome {
        let bytes = bytes_of(count, kind);
        communicator.change(Communicator::connect)??;
        let ranks = communicator.read(|communicator| communicator.ranks)?;
        (0..ranks.max(0) as u64).try_for_each(|rank| {
            copy(result.wrapping_add(rank * bytes as u64), sent, bytes, stream)
        })
    }

    /// Copies part number `rank` of this rank's values to the result. Does not add the values of
    /// other ranks, because ranks exchange no data.
    fn ncclReduceScatter(
        sent: CUdeviceptr, result: CUdeviceptr, count: usize, kind: c_int, _reduction: c_int,
        communicator: Handle, stream: CUstream,
    ) -> Outcome {
        let bytes = bytes_of(count, kind);
        communicator.change(Communicator::connect)??;
        let rank = communicator.read(|communicator| communicator.rank)?;
        copy(result, sent.wrapping_add(rank.max(0) as u64 * bytes as u64), bytes, stream)
    }

    /// Allocates the buffers for messages to the peer. Ranks exchange no data, so none is sent.
    fn ncclSend(
        _sent: CUdeviceptr, _count: usize, _kind: c_int, peer: c_int, communicator: Handle,
        _stream: CUstream,
    ) -> Outcome {
        communicator.change(|one| one.meet(peer, false))?
    }

    /// Allocates the buffers for messages from the peer. Ranks exchange no data, so none is read.
    fn ncclRecv(
        _result: CUdeviceptr, _count: usize, _kind: c_int, peer: c_int, communicator: Handle,
        _stream: CUstream,
    ) -> Outcome {
        communicator.change(|one| one.meet(peer, true))?
    }

    /// Exchanges nothing. Allocates the buffers for messages to and from every other rank.
    fn ncclAlltoAll(
        _sent: CUdeviceptr, _result: CUdeviceptr, _count: usize, _kind: c_int, communicator: Handle,
        _stream: CUstream,
    ) -> Outcome {
        communicator.change(|one| {
            (0..one.ranks).try_for_each(|peer| {
                one.meet(peer, false)?;
                one.meet(peer, true)
            })
        })?
    }

    /// Does nothing. Declares no arguments, although callers pass some. The difference is harmless:
    /// in every C ABI of Unix, the caller cleans up the arguments after the call.
    fn ncclGroupStart | ncclGroupEnd | ncclCommFinalize | ncclCommDeregister |
        ncclRedOpDestroy() -> Outcome
    {
        Ok(())
    }
}

/// Makes a communicator.
fn make(made: Out<Handle>, ranks: c_int, rank: c_int) -> Outcome {
    made.require()?;
    if rank < 0 || rank >= ranks {
        return Err(NcclCode::INVALID_ARGUMENT);
    }
    report::add_line("NCCL", memory::NOTE);
    let is_first = !device::is_loaded(Loaded::Nccl);
    let channels = device::load(Loaded::Nccl).then(|| Channels::new(ranks, is_first));
    let channels = channels.flatten().ok_or(NcclCode::UNHANDLED_CUDA_ERROR)?;
    let (buffers, messages) = (None, BTreeMap::new());
    made.write(Handle::new(Communicator { ranks, rank, channels, buffers, messages }))
}

/// Copies within the device. Skips results larger than [`MOST_BYTES`], because programs choose
/// their next steps by small results only, such as counts and flags.
fn copy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) -> Outcome {
    let Some(driver) = driver().filter(|_| to != from && bytes > 0 && bytes <= MOST_BYTES) else {
        return Ok(());
    };
    // SAFETY: the driver checks both ranges and the stream.
    check(Some(unsafe { driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream) }))
}

/// Converts the code of a driver call to an outcome. `None` means that the process has no driver.
fn check(code: Option<CUresult>) -> Outcome {
    match code.is_some_and(CUresult::is_success) {
        true => Ok(()),
        false => Err(NcclCode::UNHANDLED_CUDA_ERROR),
    }
}

/// Returns the size in bytes of `count` values. `kind` is a value of `ncclDataType_t`.
fn bytes_of(count: usize, kind: c_int) -> usize {
    count.saturating_mul(match kind as c_uint {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        4 | 5 | 8 => 8,
        _ => 4,
    })
}
