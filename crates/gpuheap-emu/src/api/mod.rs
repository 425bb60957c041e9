//! The driver API: one method on [`Call`](crate::emulator::Call) for each function of the table,
//! by area.
#![allow(non_snake_case)]

mod capture;
mod context;
mod copy;
mod device;
mod event;
mod fill;
mod general;
mod launch;
mod managed;
mod memory;
mod module;
mod pinned;
mod pointer;
mod pool;
mod stream;
mod vmm;
mod work;
