//! Send, Recv and Sendrecv that block: the steps of those that do not, taken to their ends before
//! the call returns. The two legs of an exchange are independent, as those of two threads.

use super::lent::{Lent, Sealed};
use super::messages::{Ready, Way};
use super::steps::both;
use crate::buffers::{Settled, SettledMut};
use crate::calls::progress::complete;
use crate::communicator::DeviceCommunicator;
use crate::error::Error;
use bytemuck::Pod;
use mpi::topology::Rank;

const SEND: &str = "MPI_Send of device memory";
const RECEIVE: &str = "MPI_Recv of device memory";

impl DeviceCommunicator {
    /// Sends to rank `to`, which receives with the same `tag`, 0 to 32767. More than 2 KiB
    /// are sent when the other rank receives, not before.
    pub fn send<T: Pod>(&self, to: Rank, tag: i32, buffer: &Settled<'_, T>) -> Result<(), Error> {
        let leg = self.leg::<T>(Way::To, to, tag, buffer.lent())?;
        let _call = self.traced(SEND, leg.bytes);
        complete(self.engine.behind(leg.key, leg.work)).map(drop)
    }

    /// Receives what rank `from` sends with this `tag`: how many elements. More than the
    /// buffer has are [`Error::Counts`].
    pub fn receive_into<T: Pod>(
        &self,
        from: Rank,
        tag: i32,
        buffer: &mut SettledMut<'_, T>,
    ) -> Result<usize, Error> {
        let leg = self.leg::<T>(Way::From, from, tag, buffer.lent())?;
        let _call = self.traced(RECEIVE, leg.bytes);
        let bytes = complete(self.engine.behind(leg.key, leg.work))?;
        Ok(bytes / size_of::<T>().max(1))
    }

    /// Both at a time (MPI_Sendrecv): sends to `to` and receives from `from`, whichever
    /// ranks these are, this one included. Neither waits for the other, so the other ranks may
    /// as well send and receive, in any order. An error of one does not stop the other; where both
    /// fail, the receive's is returned.
    pub fn exchange<T: Pod>(
        &self,
        to: Rank,
        sent: &Settled<'_, T>,
        from: Rank,
        received: &mut SettledMut<'_, T>,
        tag: i32,
    ) -> Result<usize, Error> {
        self.ready(&[to, from])?;
        // Neither is begun where the other cannot be.
        let send = self.leg::<T>(Way::To, to, tag, sent.lent())?;
        let receive = self.leg::<T>(Way::From, from, tag, received.lent())?;
        let _call = self.traced(SEND, send.bytes + receive.bytes);
        let comes = self.engine.behind(receive.key, receive.work);
        let (received, sent) = complete(both(comes, self.engine.behind(send.key, send.work)));
        received.and_then(|bytes| sent.map(|_| bytes / size_of::<T>().max(1)))
    }

    fn leg<T: Pod>(&self, way: Way, peer: Rank, tag: i32, buffer: Lent<'_>) -> Result<Ready, Error> {
        let operation = match way {
            Way::To => SEND,
            Way::From => RECEIVE,
        };
        self.message::<T>(operation, way, (peer, tag), buffer)
    }
}
