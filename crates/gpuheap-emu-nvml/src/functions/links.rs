//! Links between devices, which an emulated machine lacks. PyTorch asks for them.

use std::ffi::{c_int, c_uint};

use crate::args::{Handle, Out};
use crate::code::Code;
use crate::export::functions;
use crate::types::PciInfo;

functions! {
    fn nvmlDeviceGetNvLinkRemoteDeviceType(nvml, device: Handle, _link: c_uint, _kind: Out<c_int>) {
        nvml.device(device)?;
        Err(Code::NOT_SUPPORTED)
    }

    fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
        nvml, device: Handle, _link: c_uint, _info: Out<PciInfo>
    ) {
        nvml.device(device)?;
        Err(Code::NOT_SUPPORTED)
    }

    fn nvmlDeviceGetGpuFabricInfoV(nvml, device: Handle, _info: Out<u8>) {
        nvml.device(device)?;
        Err(Code::NOT_SUPPORTED)
    }
}
