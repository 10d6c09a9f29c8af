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

static PyMethodDef functions[] = {
    {"checksum", checksum, METH_VARARGS, "Return the CRC-32C of bytes, optionally by tables."},
    {"match_run", match_run, METH_VARARGS, "Match the leading frames: `ProduceTemplate.match_run`."},
    {"admit", admit, METH_VARARGS, "Return the headers of leading usual batches: `usual_headers`."},
    {"responses", responses, METH_VARARGS, "Encode responses: `ProduceTemplate.responses`."},
    {"check_copies", check_copies, METH_VARARGS, "Check fetched batches: `usual_copies`."},
    {"decode_records", decode_records, METH_VARARGS, "Decode records as tuples: `decode_as`."},
    {"decode_columns", decode_columns, METH_VARARGS, "Decode records: `_fields` of columns."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_lane",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__lane(void) {
    prepare_crc32c();
    return PyModule_Create(&definition);
}
