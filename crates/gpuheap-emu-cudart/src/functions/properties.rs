//! Functions that write all properties of a device to one structure, `cudaDeviceProp`. The
//! structure is laid out as in CUDA 12 or 13.

use std::ffi::{c_int, c_void};

use gpuheap_driver::{CUdevice_attribute, CUresult, CUuuid};

use crate::error::{Out, Outcome, call};

/// Sizes of `cudaDeviceProp` in CUDA 12 and CUDA 13, in bytes.
pub(crate) const BYTES_IN_12: usize = 1032;
pub(crate) const BYTES_IN_13: usize = 1008;

/// Sizes, in bytes, of the first fields of `cudaDeviceProp`: the name, the UUID, and the LUID with
/// its mask. The LUID and its mask stay 0.
const NAME: usize = 256;
const UUID: usize = 16;
const LUID: usize = 12;

/// One of the fields of `cudaDeviceProp` that follow the name, the UUID and the LUID.
#[derive(Clone, Copy)]
enum Field {
    /// Memory of the device.
    Memory,
    /// Value of the device attribute with this number, as a C `int`.
    Int(c_int),
    /// Value of the device attribute with this number, as a `size_t`.
    Size(c_int),
    /// Value of the device attribute with this number, as a C `int`. CUDA 13 has no such field.
    IntIn12(c_int),
    /// Number of C `int`s that are 0, for fields that correspond to no device attribute.
    Zeros(usize),
}

use Field::{Int, IntIn12, Memory, Size, Zeros};

/// Fields in the order of the structure. A number is the device attribute that a field has. A
/// comment names the attributes on the lines up to the next comment.
#[rustfmt::skip]
const FIELDS: &[Field] = &[
    Memory,
    // Shared memory, registers, warp size, pitch, threads in a block, sizes of block and grid.
    Size(8), Int(12), Int(10), Size(11), Int(1), Int(2), Int(3), Int(4), Int(5), Int(6), Int(7),
    // Clock, constant memory, compute capability, texture alignment.
    IntIn12(13), Size(9), Int(75), Int(76), Size(14), Size(51),
    // Overlap, multiprocessors, time limit, integrated, mapped host memory, compute mode.
    IntIn12(15), Int(16), IntIn12(17), Int(18), Int(19), IntIn12(20),
    // Textures of one and two dimensions.
    Int(21), Int(77), IntIn12(69), Int(22), Int(23), Int(73), Int(74), Int(70), Int(71), Int(72),
    Int(45), Int(46),
    // Textures of three dimensions, cubes and layers.
    Int(24), Int(25), Int(26), Int(47), Int(48), Int(49), Int(52), Int(42), Int(43),
    Int(27), Int(28), Int(29), Int(53), Int(54),
    // Surfaces.
    Int(55), Int(56), Int(57), Int(58), Int(59), Int(60), Int(61), Int(62), Int(63), Int(64),
    Int(65), Int(66), Int(67), Int(68), Size(30),
    // Concurrent kernels, ECC, PCI address, driver model, copy engines, unified addressing.
    Int(31), Int(32), Int(33), Int(34), Int(50), Int(35), Int(40), Int(41),
    // Memory clock and bus width, caches, threads, priorities.
    IntIn12(36), Int(37), Int(38), Int(108), Int(39), Int(78), Int(79), Int(80),
    // Shared memory and registers of a multiprocessor, managed memory, board, atomics.
    Size(81), Int(82), Int(83), Int(84), Int(85), Int(86), IntIn12(87),
    // Pageable and managed access, preemption, cooperative launches.
    Int(88), Int(89), Int(90), Int(91), Int(95), IntIn12(96), Size(97), Int(100), Int(101),
    // Blocks per multiprocessor, access policy window, reserved shared memory.
    Int(106), Int(109), Size(111),
    // Registered memory, sparse arrays, semaphores, pools, RDMA.
    Int(99), Int(112), Int(113), Int(114), Int(115), Int(116), Int(117), Int(118), Int(119),
    // Deferred mapping, events between processes, clusters, function pointers.
    Int(121), Int(125), Int(120), Int(129),
];

/// Last fields of `cudaDeviceProp` in CUDA 13: NUMA, MPS, PCI identity.
const LAST_IN_13: &[Field] =
    &[Int(130), Int(131), Int(133), Int(134), Int(139), Int(140), Int(143), Zeros(56)];

/// Last fields of `cudaDeviceProp` in CUDA 12: zeros.
const LAST_IN_12: &[Field] = &[Zeros(63)];

pub(crate) fn write_properties<const BYTES: usize>(
    properties: Out<c_void>,
    device: c_int,
    is_12: bool,
) -> Outcome {
    properties.require()?;
    let found: [u8; BYTES] =
        layout(device, is_12)?.try_into().map_err(|_| CUresult::ERROR_UNKNOWN)?;
    // SAFETY: the program passes the structure of this version, and the structure has `BYTES`
    // bytes.
    unsafe { properties.cast() }.write(found)
}

/// Returns the bytes of the structure.
fn layout(device: c_int, is_12: bool) -> Outcome<Vec<u8>> {
    let (mut name, mut uuid, mut memory) = ([0; NAME], CUuuid::default(), 0);
    call!(cuDeviceGetName(name.as_mut_ptr(), NAME as c_int, device))?;
    call!(cuDeviceGetUuid_v2(&mut uuid, device))?;
    call!(cuDeviceTotalMem_v2(&mut memory, device))?;
    let get = |number: c_int| {
        let mut value = 0;
        match call!(cuDeviceGetAttribute(&mut value, CUdevice_attribute(number), device)) {
            // An attribute that the driver lacks has the value 0.
            Err(CUresult::ERROR_INVALID_VALUE) => Ok(0),
            outcome => outcome.map(|()| value),
        }
    };
    let mut bytes: Vec<u8> = name.iter().flat_map(|each| each.to_ne_bytes()).collect();
    bytes.extend(uuid.bytes);
    debug_assert_eq!(bytes.len(), NAME + UUID);
    bytes.resize(NAME + UUID + LUID, 0);
    let last = if is_12 { LAST_IN_12 } else { LAST_IN_13 };
    for field in FIELDS.iter().chain(last) {
        match *field {
            Memory => push_size(&mut bytes, memory),
            Size(number) => push_size(&mut bytes, get(number)? as usize),
            IntIn12(_) if !is_12 => {}
            Int(number) | IntIn12(number) => bytes.extend(get(number)?.to_ne_bytes()),
            Zeros(count) => bytes.resize(bytes.len() + count * size_of::<c_int>(), 0),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(align_of::<usize>()), 0);
    Ok(bytes)
}

fn push_size(bytes: &mut Vec<u8>, value: usize) {
    bytes.resize(bytes.len().next_multiple_of(align_of::<usize>()), 0);
    bytes.extend(value.to_ne_bytes());
}
