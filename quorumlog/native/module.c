// The module `quorumlog.native._lane`. Limited API of Python 3.11.

#include "lane.h"

static PyObject *checksum(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data;
    int by_tables;
    if (!PyArg_ParseTuple(args, "y*p", &data, &by_tables)) return NULL;
    const uint8_t *begin = data.buf;
    uint32_t crc = (by_tables ? crc32c_by_tables : crc32c)(begin, begin + data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

PyObject *check_copies(PyObject *module, PyObject *args);
PyObject *decode_records(PyObject *module, PyObject *args);
PyObject *decode_columns(PyObject *module, PyObject *args);

static PyMethodDef functions[] = {
    {"checksum", checksum, METH_VARARGS, "Return the CRC-32C of bytes, optionally by tables."},
    {"check_copies", check_copies, METH_VARARGS,
     "(records, next_offset, leader_epoch, BatchSpan, BatchHeader): return the spans, and\n"
     "(position, header) of each batch with a producer; None: a batch is not usual."},
    {"decode_records", decode_records, METH_VARARGS,
     "(body, header, first_offset, type, before, behind): return the records from first_offset\n"
     "on as tuples of this type, each between the other items; None: one is not usual."},
    {"decode_columns", decode_columns, METH_VARARGS,
     "(bytes, [(header, body)], records): return columns of int64, and the pairs of all headers;\n"
     "None: a record is not usual."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_lane",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__lane(void) { return PyModule_Create(&definition); }
